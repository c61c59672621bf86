"""How a process reaches etcd and NATS: read once from the environment, by the usual names.

Connection settings come from the environment only, since they may hold secrets (flags
show in `ps`). A malformed value is an `InvalidArgument` that names the variable. Who we are
may also stand in a folder of files, as a Secret is mounted: those are read at each sign-in
(`with_files`), so that a new password needs no new process.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from dynamo.runtime.errors import InvalidArgument

T = TypeVar("T")
C = TypeVar("C", "EtcdConfig", "NatsConfig")

START_LIMIT: Final = 120.0
"""Seconds that a starting process waits for etcd and for NATS."""
ETCD: Final = "etcd"
POD_NAME: Final = "POD_NAME"
"""Set by the operator in every worker's pod, whose host may have another name."""
MEMORY: Final = "mem"
_TEXTS: Final = {"username": "username", "password": "password"}
ETCD_FILES: Final = {**_TEXTS, "ca.crt": "ca", "tls.crt": "client_cert", "tls.key": "client_key"}
"""Names of files and the fields that they fill: user, password and token with their text, the others with a path."""
NATS_FILES: Final = {
    **_TEXTS,
    "token": "token",
    "nkey": "nkey",
    "user.creds": "credentials_file",
    "ca.crt": "tls_ca",
    "tls.crt": "tls_cert",
    "tls.key": "tls_key",
}
_CONTENTS: Final = frozenset({"username", "password", "token"})


@dataclasses.dataclass(frozen=True)
class EtcdConfig:
    """`ETCD_*`. The certificates are paths, read again at each new connection."""

    endpoints: tuple[str, ...] = ("http://localhost:2379",)
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    lease_ttl: float = 10.0
    start_limit: float = START_LIMIT
    folder: str | None = None
    """Files called as in `ETCD_FILES`; what is set by itself wins."""

    def with_files(self) -> EtcdConfig:
        """Return it as the folder's files have it now; `InvalidArgument` where one can't be read."""
        return _filled(self, self.folder, ETCD_FILES, "ETCD_AUTH_DIR")


@dataclasses.dataclass(frozen=True)
class NatsConfig:
    """`NATS_*`; files are paths, read again at each new connection."""

    servers: tuple[str, ...] = ("nats://localhost:4222",)
    username: str | None = None
    password: str | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    nkey: str | None = None
    credentials_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    start_limit: float = START_LIMIT
    folder: str | None = None
    """Files called as in `NATS_FILES`; what is set by itself wins."""

    def with_files(self) -> NatsConfig:
        """Return it as the folder's files have it now; `InvalidArgument` where one can't be read."""
        return _filled(self, self.folder, NATS_FILES, "NATS_AUTH_DIR")


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    """Configuration of a runtime: everything that `DistributedRuntime.create` needs."""

    etcd: EtcdConfig = dataclasses.field(default_factory=EtcdConfig)
    nats: NatsConfig = dataclasses.field(default_factory=NatsConfig)
    discovery_backend: str = ETCD
    grace: float = 30.0
    """Seconds that a shutdown waits for running streams."""
    direct_frames: bool = True
    """Whether frames may go beside NATS between processes of one user on one machine."""
    host: str = dataclasses.field(default_factory=socket.gethostname)
    """What the records of this process say of where it runs."""

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> RuntimeConfig:
        env = os.environ if env is None else env
        read = _Reader(env)
        return cls(
            etcd=_etcd(read),
            nats=_nats(read),
            discovery_backend=read.choice("DYN_DISCOVERY_BACKEND", ETCD, (ETCD, MEMORY)),
            grace=read.number("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", 30.0, least=0.0),
            direct_frames=read.choice("DYN_DIRECT_FRAMES", "on", ("on", "off")) == "on",
            host=read.text(POD_NAME) or socket.gethostname(),
        )

    def with_options(self, discovery_backend: str, direct_frames: str) -> RuntimeConfig:
        """Return it as a program's options have it; `off` in the environment holds for programs without that one."""
        direct = self.direct_frames and direct_frames == "on"
        return dataclasses.replace(self, discovery_backend=discovery_backend, direct_frames=direct)


class _Reader:
    """Values of the environment; an empty one counts as unset."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str) -> str | None:
        return self._env.get(name, "").strip() or None

    def number(self, name: str, default: float, *, least: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            raise InvalidArgument(f"{name} must be a number of seconds, not {text!r}") from None
        if not least <= value < float("inf"):
            raise InvalidArgument(f"{name} must be at least {least:g}, not {text}")
        return value

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        text = self.text(name) or default
        if text not in allowed:
            raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}, not {text!r}")
        return text

    def urls(self, name: str, default: tuple[str, ...], check: Callable[[str], str | None]) -> tuple[str, ...]:
        text = self.text(name)
        if text is None:
            return default
        urls = tuple(part.strip() for part in text.split(",") if part.strip())
        for url in urls:
            if problem := check(url):
                raise InvalidArgument(f"{name}: {problem}")
        if not urls:
            raise InvalidArgument(f"{name} names no server")
        return urls

    def file(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None and not Path(text).is_file():
            raise InvalidArgument(f"{name}: there is no file {text}")
        return text

    def folder(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None and not Path(text).is_dir():
            raise InvalidArgument(f"{name}: there is no folder {text}")
        return text


def _url_problem(url: str, schemes: tuple[str, ...]) -> str | None:
    """Say what is wrong with a server's URL, but nothing of a user or password in it."""
    full = url if "://" in url else f"{schemes[0]}://{url}"
    try:
        parts = urlsplit(full)
        named, port = parts.hostname, parts.port
    except ValueError:
        return "a URL has a malformed port or host"
    if parts.scheme not in schemes:
        return f"a URL must start with {' or '.join(s + '://' for s in schemes)}, not {parts.scheme}://"
    if not named or port == 0:
        return "a URL needs a host and a port above 0"
    return None


def _etcd(read: _Reader) -> EtcdConfig:
    config = EtcdConfig(
        endpoints=read.urls("ETCD_ENDPOINTS", EtcdConfig.endpoints, lambda u: _url_problem(u, ("http", "https"))),
        username=read.text("ETCD_AUTH_USERNAME"),
        password=read.text("ETCD_AUTH_PASSWORD"),
        ca=read.file("ETCD_AUTH_CA"),
        client_cert=read.file("ETCD_AUTH_CLIENT_CERT"),
        client_key=read.file("ETCD_AUTH_CLIENT_KEY"),
        lease_ttl=read.number("ETCD_LEASE_TTL", 10.0, least=1.0),
        folder=read.folder("ETCD_AUTH_DIR"),
    )
    _together("ETCD_AUTH_USERNAME", config.username, "ETCD_AUTH_PASSWORD", config.password)
    _together("ETCD_AUTH_CLIENT_CERT", config.client_cert, "ETCD_AUTH_CLIENT_KEY", config.client_key)
    return config


def _nats(read: _Reader) -> NatsConfig:
    schemes = ("nats", "tls", "ws", "wss")
    config = NatsConfig(
        servers=read.urls("NATS_SERVER", NatsConfig.servers, lambda u: _url_problem(u, schemes)),
        username=read.text("NATS_AUTH_USERNAME"),
        password=read.text("NATS_AUTH_PASSWORD"),
        token=read.text("NATS_AUTH_TOKEN"),
        nkey=read.file("NATS_AUTH_NKEY"),
        credentials_file=read.file("NATS_AUTH_CREDENTIALS_FILE"),
        tls_ca=read.file("NATS_TLS_CA"),
        tls_cert=read.file("NATS_TLS_CERT"),
        tls_key=read.file("NATS_TLS_KEY"),
        folder=read.folder("NATS_AUTH_DIR"),
    )
    _together("NATS_AUTH_USERNAME", config.username, "NATS_AUTH_PASSWORD", config.password)
    _together("NATS_TLS_CERT", config.tls_cert, "NATS_TLS_KEY", config.tls_key)
    return config


def _filled(config: C, folder: str | None, files: Mapping[str, str], variable: str) -> C:
    if folder is None:
        return config
    texts: dict[str, str] = {}
    for name, field in files.items():
        path = Path(folder, name)
        if getattr(config, field) is None and path.is_file():
            texts[field] = _text_of(path, variable) if field in _CONTENTS else str(path)
    return dataclasses.replace(config, **texts)  # type: ignore[arg-type]


def _text_of(path: Path, variable: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{variable}: {path} can't be read: {type(error).__name__}") from None


def _together(first: str, value: T | None, second: str, other: T | None) -> None:
    if (value is None) != (other is None):
        missing, given = (second, first) if other is None else (first, second)
        raise InvalidArgument(f"{given} is set but {missing} is not: both are needed")
