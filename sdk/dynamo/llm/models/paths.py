"""Which model is meant by what somebody typed: a path of this machine, or a name of the hub; and what else was meant.

Light, so that command lines can ask before they import an engine.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus

from dynamo.llm.hub.names import SCHEME, parse
from dynamo.runtime.errors import InvalidArgument

_FILE: Final = "file://"
_WEIGHTS: Final = (".gguf", ".safetensors", ".bin")
_LISTED: Final = 8
_BARE: Final = re.compile(r"[\w.-]+(?::[\w.-]+)?")
"""A name without an organisation, as other programs have them: `llama3.2`, `qwen3:0.6b`."""
_SEARCH: Final = "https://huggingface.co/models?search="


def is_of_hub(source: str) -> bool:
    """Tell whether a model of the hub is meant: by its scheme or page, or by a name that is no path here."""
    if "://" in source:
        return source.startswith((SCHEME, "https://", "http://")) and not _local(source).is_dir()
    try:
        return parse(source) is not None and not (Path(source).exists() or Path(source.partition("/")[0]).is_dir())
    except OSError:
        return False


def find_path(source: str) -> Path:
    """Return the existing path that `source` names, or say what was looked for."""
    if source.startswith(SCHEME):
        return _local(source)
    path = Path(source.removeprefix(_FILE)).expanduser()
    try:
        if path.exists():
            return path
        target = path.readlink() if path.is_symlink() else None
    except PermissionError as error:
        raise InvalidArgument(f"no permission to read {str(path)!r}") from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{source!r} is no usable path: {error}") from error
    if target is not None:
        raise InvalidArgument(f"{str(path)!r} is a link to {str(target)!r}, which doesn't exist: ln -sfn TARGET {path}")
    raise InvalidArgument(f"there is no model at {str(path)!r}: {_hint(path, source)}")


def _local(source: str) -> Path:
    """Return where a clone of a model of the hub would lie."""
    return Path(source.removeprefix(SCHEME)).expanduser()


def _hint(path: Path, source: str) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {str(folder)!r} does not exist either"
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError:
        names = []
    if near := nearest(path.name, (name for name in names if name != path.name)):
        return f"did you mean {str(folder / near)!r}?"
    if _BARE.fullmatch(source) and not looks_like_weights(source):
        wanted = quote_plus(source.replace(":", " "))
        return f"the hub's models are called ORG/NAME, or ORG/NAME:Q4_K_M for a GGUF file ({_SEARCH}{wanted})"
    return _there([name for name in names if name.lower().endswith(_WEIGHTS[0])], folder)


def looks_like_weights(name: str) -> bool:
    """Tell whether a name ends as files of weights do, one letter amiss allowed."""
    ending = Path(name).suffix.lower()
    return bool(difflib.get_close_matches(ending, _WEIGHTS, n=1, cutoff=0.8)) if ending else False


def _there(files: Sequence[str], folder: Path) -> str:
    if not files:
        return f"no .gguf file lies in {str(folder.absolute())!r}; name a file, a folder, or ORG/NAME of the hub"
    more = f" and {len(files) - _LISTED} more" if len(files) > _LISTED else ""
    return f"{str(folder.absolute())!r} has {', '.join(files[:_LISTED])}{more}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the name that was probably meant, by its letters or because it has all of them; "" for none. Pure."""
    known = list(names)
    if close := difflib.get_close_matches(name, known, n=1):
        return close[0]
    plain = _plain(name)
    fits = [other for other in known if plain and looks_like_weights(other) and plain in _plain(other)]
    return min(fits, key=len) if fits else ""


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
