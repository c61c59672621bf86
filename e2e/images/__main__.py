"""`python -m e2e.images [--tool docker|buildah] [--all | NAME ...]`: make images, print what and where they are.

| variable | what |
|---|---|
| DYNAMO_IMAGES_TOOL | docker or buildah (default: docker where a daemon has the base or can pull it) |
| DYNAMO_IMAGES_BASE | with docker: the base, instead of the Dockerfiles' default |
| DYNAMO_E2E_CACHE | where archives and layers are kept (default: ~/.cache/dynamo-pipelines) |
"""

from __future__ import annotations

import argparse
import os
import sys

from e2e.images.make import make_images
from e2e.images.recipes import read
from e2e.kind.places import REPOSITORY, Places
from e2e.kind.steps import StepError


def main(words: list[str]) -> int:
    """Make what is missing; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description="Make container images as archives.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="images to make (default: the project's)")
    parser.add_argument("--all", action="store_true", help="those that only the tests need, too: etcd, NATS, a model")
    parser.add_argument("--tool", default=os.environ.get("DYNAMO_IMAGES_TOOL", ""), choices=["", "docker", "buildah"])
    given = parser.parse_args(words)
    try:
        names = [] if given.all else given.names or read(REPOSITORY).ours
        made = make_images(Places.of(os.environ), names, given.tool)
    except StepError as error:
        sys.stderr.write(f"images: {error}\n")
        return 1
    for image in made:
        size = image.file.stat().st_size / 1e6
        sys.stdout.write(f"{image.name:16} {image.reference:48} {size:5.0f} MB  {image.file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
