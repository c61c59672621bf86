"""A command that runs beside a worker: real ones, and what is said of their ends."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from tests.waiting import until

from dynamo.runtime.errors import EngineError
from dynamo.worker.engines.vllm.sidecar import SidecarProcess

pytestmark = pytest.mark.processes
LISTENS = "import socket, signal, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); signal.pause()"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("sh", "-c", "exit 3"), r"^sh -c ended \(exit code 3\)"),
        (("sh", "-c", "kill -9 $$"), r"^sh -c ended \(SIGKILL\)"),
        (("no-such-command", "start"), r"^no-such-command start ended \(exit code 1\)"),
    ],
)
async def test_an_end_is_told(command: tuple[str, ...], said: str) -> None:
    sidecar = SidecarProcess(command)
    await sidecar.start()
    async with asyncio.timeout(60):
        with pytest.raises(EngineError, match=said):
            raise await sidecar.failed()
    await sidecar.stop()


def test_a_command_that_can_t_be_found_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def body() -> None:
        sidecar = SidecarProcess(("no-such-command", "start"))
        await sidecar.start()
        await sidecar.failed()

    asyncio.run(body())
    assert capfd.readouterr().err == "can't start no-such-command: No such file or directory\n"


async def test_it_is_there_when_it_answers_and_gone_when_stopped() -> None:
    """Its start returns once the port is open; then it is ended, and a second stop is fine."""
    port = free_port()
    sidecar = SidecarProcess((sys.executable, "-c", LISTENS, str(port)))
    await sidecar.start(("127.0.0.1", port))
    assert answers(port)
    await sidecar.stop()
    await until("the port is shut", lambda: not answers(port))
    await sidecar.stop()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


async def test_one_that_ends_before_it_answers_is_no_start() -> None:
    with pytest.raises(EngineError, match=r"true x does not answer at 127\.0\.0\.1:1;"):
        await SidecarProcess(("true", "x")).start(("127.0.0.1", 1))
