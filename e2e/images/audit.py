"""What images/README.md promises of an image, looked up in its archive."""

from __future__ import annotations

import fnmatch
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_USER: Final = "1000:1000"
_LABELS: Final = {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses", "version")}
# What must not be left inside. Paths have no leading slash; `*` goes over slashes.
_LEFT_BEHIND: Final = {
    "an installer": ("*/site-packages/pip/*", "*/dist-packages/pip/*", "*/ensurepip/*", "usr/local/bin/pip*"),
    "a compiler": ("usr/bin/*gcc*", "usr/bin/cc", "usr/bin/ld", "usr/bin/make", "usr/local/bin/*gcc*"),
    "a cache": ("*/.cache/*", "var/cache/pip/*", "var/lib/apt/lists/*Packages*"),
    "a source tree": ("src/*", "code/*", "*/pyproject.toml"),
    "settings of an index": ("*pip.conf",),
}
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_BLOCK: Final = 1 << 22


def problems(archive: Path, hosts: Iterable[str] = ()) -> list[str]:
    """What the image in a docker-archive has that it must not have, or lacks; `hosts` must be named nowhere in it."""
    with tarfile.open(archive) as opened:
        manifest = json.loads(_read(opened, "manifest.json"))[0]
        config = _read(opened, manifest["Config"])
        names = files(opened, manifest["Layers"])
    return [
        *_of_config(json.loads(config)["config"]),
        *(f"{what} is left inside: {found[0]}" for what, found in sorted(left_behind(names).items())),
        *(f"{host} is named in the image" for host in sorted(set(hosts)) if _holds(archive, host.encode())),
    ]


def left_behind(names: set[str]) -> dict[str, list[str]]:
    """Files that the build should have left behind, by what they are."""
    found = {what: _matching(names, patterns) for what, patterns in _LEFT_BEHIND.items()}
    return {what: paths for what, paths in found.items() if paths}


def files(archive: tarfile.TarFile, layers: Iterable[str]) -> set[str]:
    """The files that a container sees: what a layer removes is gone. Folders are left out."""
    seen: set[str] = set()
    for layer in layers:
        content = archive.extractfile(layer)
        assert content is not None, f"{layer} is no file"
        with tarfile.open(fileobj=content) as opened:
            members = [(member.name.removeprefix("./"), member.isdir()) for member in opened]
        for name, _ in members:
            seen -= _removed(seen, name)
        seen |= {name for name, folder in members if not folder and _WHITEOUT not in name}
    return seen


def _removed(seen: set[str], name: str) -> set[str]:
    folder, _, last = name.rpartition("/")
    if last == _OPAQUE:
        gone = folder
    elif last.startswith(_WHITEOUT):
        gone = f"{folder}/{last.removeprefix(_WHITEOUT)}".lstrip("/")
    else:
        return set()
    return {each for each in seen if each == gone or each.startswith(f"{gone}/")}


def _of_config(config: dict[str, Any]) -> Iterable[str]:
    if config.get("User") != _USER:
        yield f"it runs as {config.get('User') or 'root'}, not as {_USER}"
    missing = _LABELS - set(config.get("Labels") or {})
    if missing:
        yield f"labels are missing: {', '.join(sorted(missing))}"


def _matching(names: set[str], patterns: Iterable[str]) -> list[str]:
    return sorted({name for pattern in patterns for name in fnmatch.filter(names, pattern)})


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    content = archive.extractfile(name)
    assert content is not None, f"{name} is no file"
    return content.read()


def _holds(file: Path, words: bytes) -> bool:
    """Whether a file's bytes hold `words`; layers in an archive aren't compressed."""
    with file.open("rb") as content:
        rest = b""
        while block := content.read(_BLOCK):
            if words in rest + block:
                return True
            rest = block[-len(words) :]
    return False
