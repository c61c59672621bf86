"""dynamo-run as its users start it: whole processes, a terminal, pipes, and real etcd and NATS between two shells."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

import openai
import pytest
from tests.environments import quick_environment
from tests.processes import RUN, Process, piped
from tests.terminal import on_terminal
from tests.waiting import eventually
from tests.worker.chain_model import write_gguf

pytestmark = pytest.mark.processes


def test_a_pipe_gets_only_the_answer(tmp_path: Path) -> None:
    """`echo hi | dynamo-run out=echo_full` prints the prompt back and nothing else."""
    done = piped(tmp_path, "hi there\n", "out=echo_full")
    assert (done.returncode, done.stdout, done.stderr) == (0, "hi there\n", "")


def test_echo_core_shows_the_rendered_prompt(tmp_path: Path) -> None:
    """The answer of echo_core is what the chat template made of the prompt, end markers included."""
    done = piped(tmp_path, "größer 漢字 🎉\n", "out=echo_core")
    assert done.returncode == 0
    assert "größer 漢字 🎉" in done.stdout
    assert done.stdout != "größer 漢字 🎉\n"


def test_a_conversation_is_kept(tmp_path: Path) -> None:
    """The second turn of in=text is asked with the first one before it."""
    done = piped(tmp_path, "first\nsecond\n", *["in=text", "out=echo_core"])
    assert done.returncode == 0
    assert [done.stdout.count(word) for word in ("first", "second")] == [3, 1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("out=echo_core --model-path /does/not/exist", "/does/not/exist"),
        ("out=vllm /does/not/exist", "/does/not/exist"),
        ("out=mocker --extra-engine-args /does/not/exist", "/does/not/exist"),
        ("out=echo_full --model-name m --request-template {template}", "nobody serves other; served are m"),
    ],
)
def test_what_fails_is_told_in_a_sentence(words: str, says: str, tmp_path: Path) -> None:
    """A model, an engine or a file that is not there ends with exit code 1 and one line."""
    template = tmp_path / "t.json"
    template.write_text('{"model": "other", "temperature": 1}')
    done = piped(tmp_path, "hi\n", *words.format(template=template).split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert says in done.stderr


def test_an_empty_pipe_is_a_usage_error(tmp_path: Path) -> None:
    """Nothing on standard input is not a prompt."""
    done = piped(tmp_path, "", "out=echo_full")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("words", ["in=stdin out=echo_core", "in=text out=echo_core"])
def test_an_interrupt_ends_a_process_that_waits_for_input(words: str, tmp_path: Path) -> None:
    """Ctrl-C works although nobody closes standard input."""
    argv = [*RUN, *words.split(), "-v"]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=quick_environment(tmp_path)
    )
    assert process.stderr is not None
    try:
        os.set_blocking(process.stderr.fileno(), False)
        eventually("the model is loaded", lambda: b"is served" in (process.stderr.read() or b""))  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130
    finally:
        process.kill()
        process.communicate()


def test_a_reader_with_enough_is_no_error(tmp_path: Path) -> None:
    """`dynamo-run ... | head -c 1` ends without a word on standard error."""
    line = f"echo hi there | {' '.join(RUN)} out=echo_core | head -c 1"
    done = subprocess.run(
        ["bash", "-c", line], env=quick_environment(tmp_path), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("U", "")


def test_kv_mode_works_in_one_process(tmp_path: Path) -> None:
    """The mocker's events reach the router over memory too."""
    quick = tmp_path / "quick.json"
    quick.write_text('{"speedup_ratio": 0}')
    done = piped(tmp_path, "hi\n", *f"out=mocker --router-mode kv --extra-engine-args {quick}".split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def test_a_terminal_gets_a_chat(tmp_path: Path) -> None:
    """On a terminal: a prompt, the answer, a history on disk, and Ctrl-C ends it well."""
    with on_terminal([*RUN, "out=echo_full"], quick_environment(tmp_path)) as terminal:
        terminal.wait_for("a prompt", b"User:")
        terminal.type(b"well met\r")
        terminal.wait_for("the answer", b"\x1b[?2004lwell met\r\n")
        terminal.type(b"\x03")
        assert terminal.process.wait(15) == 0
    assert "+well met" in (tmp_path / "dynamo/history").read_text()


def test_ctrl_d_beside_an_answer_ends_the_chat_after_it(tmp_path: Path) -> None:
    """What is typed meanwhile waits in the terminal, which makes another character of Ctrl-D."""
    env = {**quick_environment(tmp_path), "DYN_TOKEN_ECHO_DELAY_MS": "100"}
    with on_terminal([*RUN, "out=echo_full"], env) as terminal:
        terminal.wait_for("a prompt", b"User:")
        terminal.type(b"well met by moonlight\r")
        terminal.wait_for("the answer's beginning", b"\x1b[?2004lwell")
        terminal.type(b"\x04")
        terminal.wait_for("the answer's end", b"moonlight\r\n")
        assert terminal.process.wait(15) == 0


def test_a_server_without_servers(tmp_path: Path) -> None:
    """in=http out=mocker needs no etcd and no NATS, prints its free port, and serves the openai package."""
    argv = [*RUN, "in=http", "out=mocker", "--http-port", "0", "--model-name", "mock"]
    with Process("server", argv, tmp_path, quick_environment(tmp_path)) as server:
        url = server.ready_line()["url"]
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["mock"]
            made = client.completions.create(model="mock", prompt="hi", max_tokens=5)
            assert made.usage is not None
            assert made.usage.completion_tokens == 5
            said = client.chat.completions.create(
                model="mock", messages=[{"role": "user", "content": "hi"}], max_tokens=5, stream=True
            )
            assert [chunk.choices[0].finish_reason for chunk in said][-1] == "length"
        assert server.stop(60, signal.SIGINT) == 130


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """A second server on one port says so before it loads anything."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = piped(tmp_path, "", *f"in=http out=echo_full --http-port {port}".split())
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert str(port) in done.stderr


def models(client: openai.OpenAI) -> list[str]:
    with contextlib.suppress(openai.APIError):
        return [model.id for model in client.models.list()]
    return []


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_two_shells(servers: dict[str, str], tmp_path: Path) -> None:
    """A worker with a real engine in one shell, its frontend in another; over etcd and NATS only."""
    model = str(write_gguf(tmp_path))
    worker = [*RUN, "in=dyn://ns.backend.generate", "out=llamacpp", model, "--model-name", "chain"]
    front = [*RUN, "in=http", "out=dyn", "--http-port", "0"]
    with (
        Process("worker", worker, tmp_path, servers) as serving,
        Process("front", front, tmp_path, servers) as asking,
        openai.OpenAI(base_url=f"{asking.ready_line()['url']}/v1", api_key="none", max_retries=0) as client,
    ):
        serving.ready_line()
        eventually("the model is listed", lambda: models(client) == ["chain"], 60)
        made = client.completions.create(model="chain", prompt="a", max_tokens=4, temperature=0)
        assert made.choices[0].text == "bcde"
        assert serving.stop(60) == 0
        eventually("the model is gone", lambda: models(client) == [])
        assert asking.stop(60) == 0


@pytest.mark.servers
def test_a_pipe_may_ask_workers_elsewhere(servers: dict[str, str], tmp_path: Path) -> None:
    """`echo hi | dynamo-run out=dyn` takes the first model that is there."""
    worker = [*RUN, "in=dyn://ns.backend.generate", "out=echo_full", "--model-name", "echo"]
    with Process("worker", worker, tmp_path, servers) as serving:
        serving.ready_line()
        done = subprocess.run(
            [*RUN, "out=dyn"], input="hi\n", env=servers, capture_output=True, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stdout) == (0, "hi\n"), done.stderr
