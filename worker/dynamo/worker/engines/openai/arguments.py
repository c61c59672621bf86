"""The engine arguments of `openai`: where the server is and how it is asked. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.settings import checked_arguments

AUTO: Final = "auto"
PLAIN: Final = "openai"
APIS: Final = (AUTO, PLAIN, "vllm", "sglang", "llamacpp")
DEFAULTS: Final[dict[str, Any]] = {
    "url": "",
    "api": AUTO,
    "server_model": "",
    "api_key_env": "",
    "max_requests": 256,
    "ready_secs": 3600,
    "silence_secs": 300,
}
_LOWEST: Final = {"max_requests": 1, "silence_secs": 1}
_VERSION_PATH: Final = re.compile(r"/v1/?$")


class Upstream(NamedTuple):
    """Server that answers, as its user names it."""

    root: str
    """Scheme, host, port and what comes before `/v1`."""
    api: str
    model: str
    """Name of the model there; empty: its only one."""
    api_key_env: str
    max_requests: int
    ready_secs: float
    """Seconds that the server may take to get ready."""
    silence_secs: float
    """Seconds without a byte after which a stream counts as lost."""

    def headers(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the header with the key; `InvalidArgument` where its variable is empty."""
        if not self.api_key_env:
            return {}
        key = environment.get(self.api_key_env, "").strip()
        if not key:
            raise InvalidArgument(f"openai argument 'api_key_env': the variable {self.api_key_env} is not set")
        return {"Authorization": f"Bearer {key}"}


def upstream(given: dict[str, Any]) -> Upstream:
    """Read the engine arguments; `InvalidArgument` names the one that can't be meant."""
    arguments = checked_arguments("openai", given, DEFAULTS, _LOWEST)
    if arguments["api"] not in APIS:
        raise InvalidArgument(f"openai argument 'api' must be one of {', '.join(APIS)}, got {arguments['api']!r}")
    return Upstream(
        _root(arguments["url"]), arguments["api"], arguments["server_model"], arguments["api_key_env"],
        arguments["max_requests"], float(arguments["ready_secs"]), float(arguments["silence_secs"]),
    )  # fmt: skip


def _root(url: str) -> str:
    if not url:
        raise InvalidArgument(
            'engine openai needs the address of a server: --engine-args \'{"url": "http://HOST:PORT/v1"}\''
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.query or parts.fragment:
        raise InvalidArgument(f"openai argument 'url' must be http(s)://HOST:PORT/v1, got {url[:200]!r}")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument(
            "openai argument 'url' holds a user or password: name a variable by 'api_key_env' instead"
        )
    return _VERSION_PATH.sub("", url).rstrip("/")
