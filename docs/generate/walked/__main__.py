"""Write the files that a request and a spec change run through into a page, between its marks.

`python -m docs.generate.walked docs/design/skeleton.md`, in some 40 s; etcd and NATS are the tests' own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from textwrap import fill

from docs.generate.walked.request import walk_request
from docs.generate.walked.spec_change import walk_spec_change


def listed(files: list[str]) -> str:
    """Return a list with an item for each run of files of one folder."""
    folders = [(folder, list(names)) for folder, names in groupby((Path(file) for file in files), lambda p: p.parent)]
    items = (f"- `{folder}/`: {', '.join(f'`{file.name}`' for file in names)}" for folder, names in folders)
    return "\n".join(fill(item, 125, subsequent_indent="  ", break_on_hyphens=False) for item in items)


def written(page: str, walks: Mapping[str, list[str]]) -> str:
    """Return the page with each walk between its marks."""
    for name, files in walks.items():
        text = f"<!-- walked: {name} -->\n{len(files)} files:\n\n{listed(files)}\n\n<!-- end -->"
        page = re.sub(rf"<!-- walked: {name} -->.*?<!-- end -->", text, page, flags=re.DOTALL)
    return page


def main(path: Path) -> None:
    """Measure all walks, print their lengths, and write them down."""
    plain, kv = walk_request(), walk_request("--router-mode", "kv")
    walks = {
        "request": plain.setup, "token": plain.token, "spec change": walk_spec_change(),
        "mode kv": [file for file in kv.setup if file not in plain.setup],
    }  # fmt: skip
    for name, files in walks.items():
        print(f"{name}: {len(files)} files")
    path.write_text(written(path.read_text(), walks))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
