"""The command line of releases: `python -m release build|version`."""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path
from typing import Final

from release.build import ReleaseError, build
from release.changelog import cut
from release.versions import set_version, version_of

ROOT: Final = Path(__file__).resolve().parent.parent
_EXAMPLES: Final = """\
examples:
  make release                                      everything but the images, into build/release
  make release ARGS="--images --key cosign.key"     with the images, and signed (COSIGN_PASSWORD opens the key)
  make release-version TO=0.2.0                     write the next version everywhere, and cut the changelog
"""


def main(words: list[str]) -> int:
    """Run one command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m release", description=(__doc__ or "").partition(":")[0] + ".", epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build", help="make every file of a release from the last commit")
    making.add_argument("--out", type=Path, default=ROOT / "build/release", help="folder, made anew (build/release)")
    making.add_argument("--images", action="store_true", help="the images' archives, too, by docker or buildah")
    making.add_argument("--key", type=Path, help="cosign's private key: signs SHA256SUMS; needs cosign on PATH")
    numbering = commands.add_parser("version", help="write a version wherever it stands, and cut the changelog")
    numbering.add_argument("to", help="as 0.2.0")
    asked = parser.parse_args(words)
    try:
        if asked.command == "version":
            _number(asked.to)
        else:
            for file in build(ROOT, asked.out, images=asked.images, key=asked.key):
                sys.stdout.write(f"{file.stat().st_size / 1e6:9.2f} MB  {file}\n")
    except (ReleaseError, ValueError) as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    return 0


def _number(version: str) -> None:
    old, path = version_of(ROOT), ROOT / "CHANGELOG.md"
    text = cut(path.read_text("utf-8"), version, datetime.datetime.now(datetime.UTC).date())
    for name in set_version(ROOT, version):
        sys.stdout.write(f"{name}: {old} is {version} now\n")
    path.write_text(text, "utf-8")
    sys.stdout.write("CHANGELOG.md: what was unreleased has its heading\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
