"""What processes that tests start find in their environment.

A frontend or a worker starts as it does in its image: `without` what is installed here for others.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_SERVERS: Final = ("ETCD_ENDPOINTS", "NATS_SERVER", "DYN_LOG", "DYN_CONSOLE")


def environment(state: Path, **more: str) -> dict[str, str]:
    """Return the tests' own, with a state folder of the process's own and no server named."""
    plain = {name: value for name, value in os.environ.items() if name not in _SERVERS}
    return {**plain, "XDG_STATE_HOME": str(state), "XDG_RUNTIME_DIR": str(state), **more}


def quick_environment(state: Path, **more: str) -> dict[str, str]:
    """Return the same for what `pip install dynamo-pipelines[quickstart]` brings, with echoes that don't wait."""
    # fastokens takes seconds to load, and no test of these programs is about it.
    path = without(state / "absent", "aiohttp", "fastokens")
    return environment(state, DYN_TOKEN_ECHO_DELAY_MS="0", PYTHONPATH=path, **more)


def without(folder: Path, *modules: str) -> str:
    """Return a PYTHONPATH with which these aren't installed; `folder` holds what says so.

    aiohttp is the operator's alone. nats-py loads it wherever it is, for WebSockets: a quarter of a worker's start.
    """
    folder.mkdir(exist_ok=True)
    for module in modules:
        (folder / f"{module}.py").write_text("raise ImportError('as if it were not installed')\n")
    return os.pathsep.join([str(folder), *filter(None, sys.path)])
