"""Write locks/: what each environment and each image installs, with the hashes of its files: `locks.py EXTRA...`.

`make lock` runs it, with the extras that constraints.txt covers.

`constraints.txt` says which version; a lock says which of them, and what their files are: pip refuses any other.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from images.needs import IN_EVERY_IMAGE, needs

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = "build"
"""What builds our own wheel; the environments of `make` have it, too."""
IMAGES: Final[dict[str, list[str]]] = {
    "frontend": ["frontend", "fastokens", *IN_EVERY_IMAGE],
    "worker": ["worker", *IN_EVERY_IMAGE],
    **{f"worker-{engine}": ["worker", engine, *IN_EVERY_IMAGE] for engine in ("llamacpp", "mistralrs", "openai")},
}
"""Extras of each image of a pipeline; the command line isn't part of one."""
ALONE: Final[dict[str, list[str]]] = {"operator": ["operator"]}
ENVIRONMENTS: Final[dict[str, list[str]]] = {
    "quickstart": ["--extra", "quickstart"],
    "dev": ["--group", "dev"],
}
"""What `make up` and `make test` install, as uv is asked for it; the second also has the extras of constraints.txt."""


def main(extras_of_dev: list[str]) -> None:
    """Resolve each within constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    hatchling = "\n".join(project["build-system"]["requires"]) + "\n"
    write(BUILD, hatchling, ["-"])
    for name, extras in (IMAGES | ALONE).items():
        write(name, "\n".join(needs(project["project"], extras, name in ALONE)) + "\n", ["-"])
    extras = [f"--extra={extra}" for extra in extras_of_dev]
    for name, words in ENVIRONMENTS.items():
        write(name, hatchling, ["pyproject.toml", "-", *words, *(extras if name == "dev" else [])])


def write(name: str, requirements: str, words: list[str]) -> None:
    """Write one lock; `SystemExit` where something isn't in constraints.txt."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", *words, "--output-file", f"locks/{name}.txt",
        "--constraints", "constraints.txt", "--generate-hashes", "--universal", "--python-version", "3.11", "--quiet",
        "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock",
    ]  # fmt: skip
    if subprocess.run(command, cwd=ROOT, input=requirements, text=True, check=False).returncode:
        raise SystemExit(f"locks/{name}.txt can't be resolved within constraints.txt: uv says why above")


if __name__ == "__main__":
    main(sys.argv[1:])
