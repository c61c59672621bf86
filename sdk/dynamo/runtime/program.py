"""The system server of a program that is one's own: `DYN_SYSTEM_PORT=8081 python worker.py`.

`dynamo_worker` starts it, as the original's runtime does. `dynamo-worker` and the frontend have theirs by flags.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Final

from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from dynamo.runtime.runtime import DistributedRuntime

_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")

log = logging.getLogger(__name__)


def wanted_port(env: Mapping[str, str]) -> int:
    """As `DYN_SYSTEM_PORT` says, and the older switch `DYN_SYSTEM_ENABLED`; -1: none. `InvalidArgument`: no port."""
    text, switch = env.get("DYN_SYSTEM_PORT", "").strip(), env.get("DYN_SYSTEM_ENABLED", "").strip().lower()
    try:
        port = int(text or -1)
    except ValueError:
        port = -2
    if not -1 <= port <= 65535:
        raise InvalidArgument(f"DYN_SYSTEM_PORT must be a port, 0 for a free one or -1 for none, not {text!r}")
    if switch in _OFF:
        return -1
    return 0 if port < 0 and switch in _ON else port


@contextlib.asynccontextmanager
async def system_server(runtime: DistributedRuntime, env: Mapping[str, str] | None = None) -> AsyncIterator[None]:
    """Serve health and engine routes of `runtime` meanwhile, where the environment asks for it.

    `/metrics` shows what the program keeps with prometheus_client.
    """
    env = os.environ if env is None else env
    if (port := wanted_port(env)) < 0:
        yield
        return
    from prometheus_client import REGISTRY

    from dynamo.runtime.engine_routes import PREFIX
    from dynamo.runtime.system import SystemServer, runtime_health

    host = env.get("DYN_SYSTEM_HOST", "").strip() or "127.0.0.1"
    trees = {PREFIX: runtime.engine_routes.answer}
    server = SystemServer(lambda: runtime_health(runtime), REGISTRY, host=host, port=port, trees=trees)
    runtime.system_url = f"http://{f'[{host}]' if ':' in host else host}:{await server.start()}"
    log.info("health is on %s/health", runtime.system_url)
    try:
        yield
    finally:
        runtime.system_url = None
        await server.stop()
