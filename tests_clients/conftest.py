"""The servers that all clients of this lane talk to, and the environments that the clients have to themselves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.environments import environment
from tests.processes import Process

HERE: Final = Path(__file__).parent
ENVIRONMENTS: Final = Path(os.environ["CLIENTS"])
"""Where `make test-clients` has installed the clients."""
RUN: Final = (sys.executable, "-m", "dynamo.cli.run")
KEY: Final = "any"


class Clients:
    """Programs of the clients' own environments, run as a user runs them."""

    def __init__(self, folder: Path, servers: Mapping[str, str]) -> None:
        self.folder = folder
        kept = {name: os.environ[name] for name in ("LANG", "SSL_CERT_FILE", "TZ") if name in os.environ}
        url = servers["SERVER"]
        self.env = {
            **kept, **servers, "HOME": str(folder), "TMPDIR": str(folder), "NO_COLOR": "1",
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": KEY, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": KEY,
        }  # fmt: skip

    def run(self, where: str, *words: str, within: float = 300, cwd: Path | None = None, **more: str) -> str:
        """Run a program of an environment; what it said, once it has ended well."""
        folder = ENVIRONMENTS / where / ("node_modules/.bin" if where == "node" else "bin")
        program = folder / words[0]
        argv = [str(program) if program.exists() else words[0], *words[1:]]
        env = {**self.env, "PATH": f"{folder}:{os.environ['PATH']}", **more}
        done = subprocess.run(
            argv, cwd=cwd or self.folder, env=env, capture_output=True, text=True, timeout=within, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, (
            f"{words} ended with {done.returncode}:\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        )
        return done.stdout

    def go(self, *words: str, cwd: Path) -> str:
        """Run the `go` of this machine, with the modules that its user has."""
        kept: Any = {name: os.environ[name] for name in ("GOPROXY", "GOSUMDB", "GOFLAGS") if name in os.environ}
        where: Any = {name: str(ENVIRONMENTS / "go" / name.lower()) for name in ("GOMODCACHE", "GOCACHE")}
        return self.run("go", "go", *words, cwd=cwd, **kept, **where)

    def python(self, name: str, *words: str, where: str = "sdks") -> str:
        """Run one of the programs beside this file."""
        return self.run(where, "python", "-W", "ignore", str(HERE / "programs" / f"{name}.py"), *words)


@contextlib.contextmanager
def serving(folder: Path, name: str, *words: str) -> Iterator[str]:
    """Run `dynamo-run in=http`; its address."""
    argv = [*RUN, "in=http", *words, "--model-name", name, "--http-port", "0"]
    with Process(name, argv, folder, environment(folder)) as process:
        yield str(process.ready_line()["url"])


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A mocker that thinks and calls tools, and one that embeds: one of the servers, by what programs ask for."""
    folder = tmp_path_factory.mktemp("servers")
    (folder / "embed.json").write_text('{"embedding_dim": 16}')
    parsers = ("--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "qwen3")
    with (
        serving(folder, "demo", "out=mocker", *parsers) as server,
        serving(folder, "embed", "out=mocker", "--extra-engine-args", str(folder / "embed.json")) as embedder,
    ):
        yield {"SERVER": server, "EMBEDDER": embedder}


@pytest.fixture
def clients(tmp_path: Path, servers: dict[str, str]) -> Clients:
    """Programs that know where the servers are, each test with a home of its own."""
    return Clients(tmp_path, servers)
