"""Charts as `helm package` makes them, but the same bytes for the same files: helm writes the time of packing."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pathspec
import yaml


def pack(chart: Path, folder: Path, epoch: int) -> Path:
    """Write NAME-VERSION.tgz of a chart into `folder`; every time in it is `epoch`, in seconds since 1970."""
    facts = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))
    ignored = pathspec.GitIgnoreSpec.from_lines((chart / ".helmignore").read_text("utf-8").splitlines())
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(chart.rglob("*"), key=lambda path: (path.name != "Chart.yaml", path.as_posix())):
            name = path.relative_to(chart).as_posix()
            if path.is_file() and not ignored.match_file(name):
                _add(archive, f"{facts['name']}/{name}", path.read_bytes(), epoch)
    target = folder / f"{facts['name']}-{facts['version']}.tgz"
    target.write_bytes(gzip.compress(raw.getvalue(), mtime=epoch))
    return target


def _add(archive: tarfile.TarFile, name: str, content: bytes, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(content), epoch, 0o644
    archive.addfile(member, io.BytesIO(content))
