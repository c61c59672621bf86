"""What a user's file finds in its `sys.argv`. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.settings import WorkerSettings

_FLAG: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


def file_arguments(settings: WorkerSettings, model_path: str) -> list[str]:
    """What stands behind the file's name in its `sys.argv`: what was said of the model, as the original passes it on,
    then the file's own words, then those of `--engine-args`."""
    plain = {
        "--model-path": model_path,
        "--model-name": settings.model_name,
        "--tensor-parallel-size": settings.tensor_parallel_size if settings.tensor_parallel_size > 1 else "",
    }
    found = [word for flag, value in plain.items() if value for word in (flag, str(value))]
    return [*found, *settings.python_arg, *_flags(settings.arguments())]


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """`{"n": 1, "yes": true, "tags": ["a", "b"]}` as `-n 1 --yes --tags a b`."""
    for name, value in arguments.items():
        if not _FLAG.fullmatch(name):
            raise InvalidArgument(f"--engine-args: {name!r} can't be made a flag of the file: give it letters and '-'")
        if value is None or value is False:
            continue
        yield f"-{name}" if len(name) == 1 else f"--{name}"
        if isinstance(value, list):
            yield from map(_word, value)
        elif value is not True:
            yield _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
