"""The engine arguments of `openai`: where the server is and how it is asked. Pure."""

from __future__ import annotations

import os
import re
import socket
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
    "check_secs": 2,
    "models_secs": 15,
    "images": False,
    "command": [],
    "kv_events": "",
    "kv_events_replay": "",
    "data_parallel_size": 1,
}
_LOWEST: Final = {"max_requests": 1, "models_secs": 1, "silence_secs": 1, "data_parallel_size": 1}
_MOST_RANKS: Final = 1024
_MOST_WORDS: Final = 1024
PORT: Final = "{port}"
"""In a command: a free port, which the address has, too."""
_ZMQ: Final = re.compile(r"(tcp://[^\s/]+:\d{1,5}|ipc://\S+)")
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
    check_secs: float = 2.0
    """Seconds between looks at the server; 0: none."""
    models_secs: float = 15.0
    """Seconds between looks at its list of models."""
    command: tuple[str, ...] = ()
    """Starts the server; empty where it runs elsewhere."""
    kv_events: str = ""
    """ZMQ address of rank 0's KV events; empty: none."""
    kv_events_replay: str = ""
    data_parallel_size: int = 1
    images: bool = False
    """It takes images in chats."""

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
    command = _words(arguments["command"])
    if not arguments["url"] and any(PORT in word for word in command):
        arguments["url"] = f"http://127.0.0.1:{_free_port()}"
    root = _root(arguments["url"])
    command = tuple(word.replace(PORT, str(urlsplit(root).port or 80)) for word in command)
    for name in ("kv_events", "kv_events_replay"):
        if arguments[name] and not _ZMQ.fullmatch(arguments[name]):
            raise InvalidArgument(f"openai argument {name!r} must be tcp://HOST:PORT, got {arguments[name][:200]!r}")
    if arguments["data_parallel_size"] > _MOST_RANKS:
        raise InvalidArgument(f"openai argument 'data_parallel_size' must be {_MOST_RANKS} at most")
    return Upstream(
        root, arguments["api"], arguments["server_model"], arguments["api_key_env"],
        arguments["max_requests"], float(arguments["ready_secs"]), float(arguments["silence_secs"]),
        float(arguments["check_secs"]), float(arguments["models_secs"]), command,
        arguments["kv_events"], arguments["kv_events_replay"], arguments["data_parallel_size"],
        arguments["images"],
    )  # fmt: skip


def _words(command: list[Any]) -> tuple[str, ...]:
    if len(command) > _MOST_WORDS or not all(isinstance(word, str) and "\0" not in word for word in command):
        raise InvalidArgument(f"openai argument 'command' must be a list of at most {_MOST_WORDS} words")
    return tuple(command)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
