"""The release before this one: its charts, and its images under a tag of their own, so that nodes can hold both.

That is the newest tag of a version, but for one that HEAD itself has; while nothing is released, the last commit that
is a day older than HEAD. A release's own recipes make its images.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

from e2e.images.recipes import digest
from e2e.kind.places import REPOSITORY, Places
from e2e.kind.steps import StepError, run, step

TAG = "earlier"
NAMES = ("operator", "frontend", "worker")
VALUES = (
    "--set", f"operator.image.tag={TAG}", "--set", f"pipelines.images.frontend=dynamo-pipelines/frontend:{TAG}",
    "--set", f"pipelines.images.workers.default=dynamo-pipelines/worker:{TAG}",
)  # fmt: skip
"""With which a chart asks for its images."""
_VERSION = re.compile(r"v\d+\.\d+\.\d+")
CHARTS = ("charts", "crds")
_FORMAT = 1
"""Counts changes of how an archive is written."""
_OTHER_NAMES = ("repositories", "oci-layout", "index.json")
"""Where an archive says its names again; containerd reads `manifest.json` where these aren't there."""
_GIT_SECONDS = 60
_MAKE_SECONDS = 900


def commit() -> str:
    """The commit of that release; `StepError` where the history isn't here."""
    for tag in _git("tag", "--merged", "HEAD", "--sort=-version:refname").split():
        found = _git("rev-list", "-1", tag).strip()
        if _VERSION.fullmatch(tag) and found != _git("rev-parse", "HEAD").strip():
            return found
    day = datetime.fromisoformat(_git("log", "-1", "--format=%cI").strip()).astimezone(UTC) - timedelta(days=1)
    if not (found := _git("log", "-1", "--format=%H", f"--before={day.isoformat()}").strip()):
        raise StepError(
            "this needs the repository's history, where the release before this one is: git fetch --unshallow"
        )
    return found


def charts(folder: Path, of: str) -> Path:
    """The charts and the CRD of a commit, written into `folder`."""
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", of, *CHARTS], capture_output=True, timeout=_GIT_SECONDS, check=True
    )
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def images(places: Places, tool: str) -> list[Path]:
    """Archives of its images, made where they are missing: two minutes. `tool` as for `make_images`."""
    of = commit()
    folder = places.cache / "earlier"
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / f"{name}-{digest(commit=of, tag=TAG, format=_FORMAT)}.tar" for name in NAMES]
    if not all(file.exists() for file in made):
        for old in folder.iterdir():
            old.unlink()
        with step(f"images of {of[:12]}, the release before"), tempfile.TemporaryDirectory() as work:
            for archive, file in zip(_build(Path(work) / "source", of, tool), made, strict=True):
                retagged(archive, TAG, file)
    return made


def _build(source: Path, of: str, tool: str) -> list[Path]:
    """Make them by the recipes of that release; the archives, in the order of `NAMES`."""
    run(["git", "clone", "--quiet", "--shared", "--no-checkout", REPOSITORY, source], seconds=_GIT_SECONDS)
    run(["git", "-C", source, "checkout", "--quiet", of], seconds=_GIT_SECONDS)
    command = [sys.executable, "-m", "e2e.images", "--tool", tool, *NAMES]
    printed = run(command, seconds=_MAKE_SECONDS, cwd=source, env={"PYTHONPATH": str(source)})
    rows = {words[0]: Path(words[-1]) for words in map(str.split, printed.splitlines()) if words}
    return [rows[name] for name in NAMES]


def retagged(archive: Path, tag: str, out: Path) -> Path:
    """Write a docker-archive again, with another tag."""
    part = out.with_suffix(".part")
    with tarfile.open(archive) as old, tarfile.open(part, "w") as new:
        for member in old:
            if member.name in _OTHER_NAMES:
                continue
            content = old.extractfile(member) if member.isreg() else None
            if member.name == "manifest.json" and content is not None:
                text = json.dumps([_renamed(image, tag) for image in json.load(content)]).encode()
                member.size, content = len(text), BytesIO(text)
            new.addfile(member, content)
    os.replace(part, out)
    return out


def _renamed(image: dict[str, object], tag: str) -> dict[str, object]:
    names = image["RepoTags"]
    assert isinstance(names, Sequence)
    return {**image, "RepoTags": [f"{str(name).rpartition(':')[0]}:{tag}" for name in names]}


def _git(*words: str) -> str:
    return run(["git", "-C", REPOSITORY, *words], seconds=_GIT_SECONDS)
