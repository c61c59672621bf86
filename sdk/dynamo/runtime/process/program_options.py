"""Options that most programs have; each program says by `like()` what they mean there."""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.runtime.process.settings import setting


@dataclass(frozen=True)
class ProgramOptions:
    """Options that connect a process, show its health and end it."""

    namespace: str = setting("", "Dynamo namespace.", env="DYN_NAMESPACE")
    system_host: str = setting("127.0.0.1", "Address of /health, /live and /metrics.", env="DYN_SYSTEM_HOST")
    system_port: int = setting(-1, "Their port: 0 picks a free one, -1 turns them off.", env="DYN_SYSTEM_PORT")
    graceful_shutdown_timeout_secs: float = setting(
        30.0, "Seconds that running streams may go on after SIGTERM.", env="DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"
    )
    discovery_backend: str = setting(
        "etcd", "Where instances are found.", env="DYN_DISCOVERY_BACKEND", choices=("etcd", "mem")
    )
    direct_frames: str = setting(
        "on",
        "Tokens go from worker to frontend beside NATS where both run as one user on one machine and in one network "
        "namespace; `off`: always over NATS.",
        env="DYN_DIRECT_FRAMES", choices=("on", "off"),
    )  # fmt: skip
