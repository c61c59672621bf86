"""A base from Debian's packages, for machines that reach no registry: python3, certificates, llama.cpp's one library.

Users' images start from Docker's python image; this one has the same version of Python's minor release.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from e2e.images.recipes import digest
from e2e.kind.archive import Image, layer_of, write
from e2e.kind.debian import archive_of_this_machine
from e2e.kind.steps import StepError, run, step

BASE = "localhost/dynamo-pipelines/base:bookworm"
BUILDER = "localhost/dynamo-pipelines/builder:bookworm"
_RELEASE = "bookworm"
_PACKAGES = "python3,ca-certificates,libgomp1"
_PIP = "pip==26.3"
_DEBOOTSTRAP_SECONDS = 600
_PIP_SECONDS = 200
_CONFIG = {"Env": ["LANG=C.UTF-8"], "WorkingDir": "/"}

# What no program needs at run time, what debootstrap noted of this machine, and where the packages came from.
_UNWANTED = (
    "etc/*-",
    "etc/hostname",
    "etc/resolv.conf",
    "tmp/*",
    "usr/lib/python3*/**/__pycache__",
    "usr/lib/python3.*/ensurepip",
    "usr/lib/python3.*/idlelib",
    "usr/lib/python3.*/lib2to3",
    "usr/lib/python3.*/test",
    "usr/share/bash-completion/*",
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/lintian/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "usr/share/python3/**/__pycache__",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/*",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/log/*",
)


@dataclass(frozen=True)
class Bases:
    """Archives of what images start from and of what builds them."""

    base: Path
    builder: Path

    @property
    def digest(self) -> str:
        """Changes when either does."""
        return digest(base=config_of(self.base), builder=config_of(self.builder))


def bases(folder: Path) -> Bases:
    """The two archives in `folder`, made where they are missing. Takes a minute and needs root the first time."""
    name = digest(release=_RELEASE, packages=_PACKAGES, unwanted=_UNWANTED, config=_CONFIG)
    made = Bases(folder / f"base-{name}.tar", folder / f"builder-{digest(base=name, pip=_PIP)}.tar")
    if made.base.exists() and made.builder.exists():
        return made
    if os.geteuid() or shutil.which("debootstrap") is None:
        raise StepError("a base from Debian's packages needs root and: apt-get install debootstrap")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".base-") as work, step("base from Debian's packages"):
        _make(made, Path(work))
    return made


def config_of(archive: Path) -> str:
    """The name of an archive's configuration, which is its content's digest."""
    with tarfile.open(archive) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None, f"{archive} is no docker-archive"
        return str(json.load(manifest)[0]["Config"])


def timeless(folder: Path, since: float = 0) -> None:
    """Give `folder` and what is in it the same time, as far as it was written at `since` (seconds) or later."""
    for path in [folder, *folder.rglob("*")]:
        if path.lstat().st_mtime >= since:
            os.utime(path, (0, 0), follow_symlinks=False)


def _make(made: Bases, work: Path) -> None:
    root, pip = work / "root", work / "pip"
    began = time.time()
    options = ["--variant=minbase", f"--include={_PACKAGES}"]
    run(
        ["debootstrap", *options, _RELEASE, root, *archive_of_this_machine()],
        seconds=_DEBOOTSTRAP_SECONDS,
        env={"SOURCE_DATE_EPOCH": "0", "LC_ALL": "C"},
    )
    _clean(root, began)
    _unpack_pip(pip)
    layers = [layer_of(root, work / "root.layer"), layer_of(pip, work / "pip.layer")]
    write(Image([BASE], layers[:1], _CONFIG), made.base)
    write(Image([BUILDER], layers, _CONFIG), made.builder)


def _clean(root: Path, began: float) -> None:
    """Take away what is not wanted, and every trace of when and from where it was made."""
    for pattern in _UNWANTED:
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "etc/apt/sources.list").write_text("")
    timeless(root, began - 1)


def _unpack_pip(folder: Path) -> None:
    """Debian's own pip brings a compiler's worth of packages; a wheel is a folder."""
    target = folder / "usr/lib/python3/dist-packages"
    with tempfile.TemporaryDirectory() as downloads:
        run([sys.executable, "-m", "pip", "download", "--no-deps", "-d", downloads, _PIP], seconds=_PIP_SECONDS)
        for wheel in Path(downloads).glob("*.whl"):
            ZipFile(wheel).extractall(target)
    timeless(folder)
