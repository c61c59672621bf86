"""Make every file of a release from the last commit, the same bytes wherever and whenever it is made."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from e2e.images.make import make_images
from e2e.images.recipes import read
from e2e.kind.places import REPOSITORY, Places
from e2e.kind.steps import StepError
from release import charts, installed, provenance
from release.changelog import notes_of
from release.sbom import Package, licences, sbom_of
from release.versions import spelled, version_of

from dynamo.cli.bundle import signing
from dynamo.cli.bundle.archive import SUMS as SUMS

_NAME: Final = "dynamo-pipelines"
_FILE: Final = "dynamo_pipelines"
_SECONDS: Final = 300
_HERE: Final = "urn:dynamo-pipelines:builder:by-hand"


class ReleaseError(Exception):
    """A release can't be made of this checkout; the text says what to do."""


def build(root: Path, out: Path, *, images: bool = False, key: Path | None = None) -> list[Path]:
    """Make `out` anew; return its files. ReleaseError where the checkout isn't as it was committed."""
    commit, epoch = _commit(root, untracked=images)
    version = version_of(root)
    if wrong := [f"{name} says {said}" for name, said in spelled(root) if said != version]:
        raise ReleaseError(f"pyproject.toml is of version {version}: {', '.join(wrong)}")
    if out.exists() and any(out.iterdir()) and not (out / SUMS).exists():
        raise ReleaseError(f"{out} holds something else than a release, which would be deleted: name another folder")
    with tempfile.TemporaryDirectory() as folder:
        source = _checkout(root, Path(folder) / f"{_NAME}-{version}")
        making = Path(folder) / "made"
        making.mkdir(mode=0o755)
        locks = _make(source, making, version, epoch, images=images)
        _seal(making, commit, locks, images=images, key=key)
        if out.exists():
            shutil.rmtree(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(making, out)
    return sorted(path for path in out.iterdir() if path.is_file())


def _make(source: Path, out: Path, version: str, epoch: int, *, images: bool) -> dict[str, str]:
    """Make all but what says who made it; return the digests of the locks by which it was made."""
    _python_packages(source, out, epoch)
    for chart in sorted((source / "charts").iterdir()):
        charts.pack(chart, out, epoch)
    shutil.copyfile(source / "constraints.txt", out / "constraints.txt")
    notes = notes_of((source / "CHANGELOG.md").read_text("utf-8"), version)
    (out / "NOTES.md").write_text(notes, "utf-8")
    packages = installed.of_locks(source / "locks")
    (out / f"{_FILE}-{version}.cdx.json").write_text(sbom_of(_NAME, version, packages, epoch), "utf-8")
    if images:
        packages += _images(out, version, epoch)
    (out / "LICENCES.txt").write_text(licences(packages), "utf-8")
    return {f"locks/{path.name}": _digest(path) for path in sorted((source / "locks").glob("*.txt"))}


def _commit(root: Path, *, untracked: bool) -> tuple[str, int]:
    """Return the commit and its time, in seconds since 1970; `untracked` files count where images are made of them."""
    if changed := _git(root, "status", "--porcelain", f"--untracked-files={'normal' if untracked else 'no'}"):
        raise ReleaseError(f"commit or stash first, since a release is made of a commit:\n{changed}")
    commit, _, epoch = _git(root, "log", "-1", "--format=%H %ct").partition(" ")
    return commit, int(epoch)


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise ReleaseError(f"git {words[0]} failed: {done.stderr.strip()}; a release needs a clone with git")
    return done.stdout.strip()


def _checkout(root: Path, folder: Path) -> Path:
    """Write the commit's files, and nothing else that lies in the clone, to `folder`."""
    archive = folder.with_suffix(".tar")
    archive.parent.mkdir(parents=True, exist_ok=True)
    _git(root, "archive", "--format=tar", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder


def _python_packages(source: Path, out: Path, epoch: int) -> None:
    """Build the sdist and the wheel, and have twine look at what the index will show of them."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    _run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(out)], source, environment
    )
    made = sorted(str(path) for path in out.glob(f"{_FILE}-*"))
    _run([sys.executable, "-m", "twine", "check", "--strict", *made], source, environment)


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command[2:4])} failed:\n{(done.stdout + done.stderr).strip()[-2000:]}")


def _images(out: Path, version: str, epoch: int) -> list[Package]:
    """Put the images' archives beside the rest, each with its bill of materials; return what is in them."""
    try:
        made = make_images(Places.of(os.environ), read(REPOSITORY).ours)
    except StepError as error:
        raise ReleaseError(f"the images can't be made: {error}") from None
    everything: list[Package] = []
    for image in made:
        packages = installed.of_image(image.file)
        shutil.copyfile(image.file, out / f"{image.name}-{version}.tar")
        (out / f"{image.name}-{version}.cdx.json").write_text(sbom_of(image.name, version, packages, epoch), "utf-8")
        everything += packages
    return everything


def _seal(out: Path, commit: str, locks: dict[str, str], *, images: bool, key: Path | None) -> None:
    """Write who made it of what, the checksums of all files, and their signature."""
    digests = {path.name: _digest(path) for path in out.iterdir()}
    builder = os.environ.get("RELEASE_BUILDER") or _HERE
    said = provenance.statement(digests, commit, locks, builder, images=images)
    (out / "provenance.json").write_text(json.dumps(said, indent=1) + "\n", "utf-8")
    (out / SUMS).write_text(checksums(path for path in out.iterdir() if path.name != SUMS), "utf-8")
    if key is not None:
        try:
            signing.sign(out / SUMS, key)
        except signing.SigningError as error:
            raise ReleaseError(str(error)) from None


def checksums(files: Iterable[Path]) -> str:
    """Return the lines that `sha256sum --check` reads."""
    return "".join(f"{_digest(path)}  {path.name}\n" for path in sorted(files, key=lambda path: path.name))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
