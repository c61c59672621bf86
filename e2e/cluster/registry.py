"""A real registry (docker-registry, of Debian) in a folder of a test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from e2e.apiserver.client import until
from e2e.apiserver.plane import free_ports
from e2e.cluster.cluster import program

START_SECONDS = 30
END_SECONDS = 10
_CONFIG = "version: 0.1\nlog: {level: warn}\nhttp: {secret: of-a-test}\n"


@contextmanager
def registry(folder: Path, address: str = "127.0.0.1", settings: Mapping[str, str] = {}) -> Iterator[str]:
    """Run it; gives `address:port`. `settings` are more variables of its own, such as for users."""
    (port,) = free_ports(1)
    host = f"{address}:{port}"
    folder.mkdir(parents=True)
    config = folder / "config.yml"
    config.write_text(_CONFIG)
    environment = {
        **os.environ, "REGISTRY_HTTP_ADDR": host, "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY": str(folder / "store"),
        **settings,
    }  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program("docker-registry"), "serve", str(config)], env=environment, stdout=log, stderr=log
        )
    try:
        until("the registry answers", lambda: _answers(host), START_SECONDS)
        yield host
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_SECONDS)


def _answers(host: str) -> bool:
    try:
        return httpx.get(f"http://{host}/v2/", timeout=2, trust_env=False).status_code in (200, 401)
    except httpx.HTTPError:
        return False
