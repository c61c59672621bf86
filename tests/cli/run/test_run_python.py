"""A user's own file as the engine of dynamo-run, in whole processes: pipes, a server, a worker over etcd and NATS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.cli.run.test_run_processes import models
from tests.environments import quick_environment
from tests.processes import RUN, Process, piped
from tests.waiting import eventually

EXAMPLES = Path(__file__).parents[3] / "examples" / "engines"
PYSTR, PYTOK = EXAMPLES / "pystr_engine.py", EXAMPLES / "pytok_engine.py"
pytestmark = pytest.mark.processes


def test_the_examples_answer_a_pipe(tmp_path: Path) -> None:
    """Text and tokens, with the arguments behind `--`."""
    done = piped(tmp_path, "hi there\n", f"out=pystr:{PYSTR}", "--", "--shout")
    assert (done.returncode, done.stdout, done.stderr) == (0, "HI THERE\n", "")
    done = piped(tmp_path, "hi there\n", f"out=pytok:{PYTOK}", "--", "--times", "2")
    assert (done.returncode, done.stdout.count("hi there")) == (0, 2), done.stderr


def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path) -> None:
    """A mistake ends with exit code 1 and the line; so does an error while it runs, with -v the user's frames too."""
    file = tmp_path / "mine.py"
    file.write_text("def generate(request):\n    yield 'x'\n")
    done = piped(tmp_path, "hi\n", f"out=pystr:{file}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: mine.py:1: generate is a plain generator")
    file.write_text("async def generate(request):\n    yield request['nothing']\n")
    done = piped(tmp_path, "hi\n", f"out=pystr:{file}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: mine.py:2 in generate: KeyError: 'nothing' (yield request['nothing'])\n" in done.stderr
    assert "Traceback" not in done.stderr
    done = piped(tmp_path, "hi\n", f"out=pystr:{file}", "-v")
    assert "Traceback" in done.stderr
    assert f'File "{file}", line 2' in done.stderr
    assert "userfile" not in done.stderr[done.stderr.index("Traceback") :].split("KeyError")[0]


def test_a_server_of_a_file(tmp_path: Path) -> None:
    """in=http: named after the file, streams with usage, cut at stop strings; an error is told, and it serves on."""
    file = tmp_path / PYSTR.name
    word = "    words = spoken"
    file.write_text(PYSTR.read_text().replace(word, f'    assert "nonsense" not in request, "is"\n{word}'))
    argv = [*RUN, "in=http", f"out=pystr:{file}", "--http-port", "0"]
    with (
        Process("server", argv, tmp_path, quick_environment(tmp_path)) as server,
        openai.OpenAI(base_url=f"{server.ready_line()['url']}/v1", api_key="none", max_retries=0) as client,
    ):
        assert models(client) == ["pystr_engine"]
        said = client.chat.completions.create(
            model="pystr_engine", messages=[{"role": "user", "content": "all is well here"}],
            stream=True, stream_options={"include_usage": True}, max_tokens=3,
        )  # fmt: skip
        chunks = list(said)
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "all is well"
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert chunks[-1].usage is not None
        assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (4, 3)
        made = client.completions.create(model="pystr_engine", prompt="all is well here", stop=["well"])
        assert (made.choices[0].text, made.choices[0].finish_reason) == ("all is ", "stop")
        with pytest.raises(openai.InternalServerError, match=r"pystr_engine\.py:\d+ in generate: AssertionError: is"):
            client.completions.create(model="pystr_engine", prompt="x", extra_body={"nonsense": True})
        assert client.completions.create(model="pystr_engine", prompt="on it goes").choices[0].text == "on it goes"
        assert server.stop(60) == 0


def test_tools_of_a_file(tmp_path: Path) -> None:
    """What docs/how-to/serve/tools.md starts and asks: a call, reasoning, and the turn after."""
    parsers = ["--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "qwen3"]
    argv = [*RUN, "in=http", f"out=pystr:{EXAMPLES / 'tools_engine.py'}", "--model-name", "demo", *parsers]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    ask: Any = [{"role": "user", "content": "Paris"}]
    with (
        Process("server", [*argv, "--http-port", "0"], tmp_path, quick_environment(tmp_path)) as server,
        openai.OpenAI(base_url=f"{server.ready_line()['url']}/v1", api_key="none", max_retries=0) as client,
    ):
        message: Any = client.chat.completions.create(model="demo", messages=ask, tools=tools).choices[0].message
        (call,) = message.tool_calls
        assert (message.content, message.reasoning_content) == (None, "I ask get_weather.")
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Paris"}')
        turn = [*ask, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        stream = client.chat.completions.create(model="demo", messages=turn, tools=tools, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "The tool says: rain"
        assert server.stop(60) == 0
    done = piped(tmp_path, "hi\n", "out=dyn", "in=http", *parsers)
    assert (done.returncode, "only be used on the worker node" in done.stderr) == (2, True), done.stderr


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_a_worker_of_a_file(servers: dict[str, str], tmp_path: Path) -> None:
    """in=dyn:// over etcd and NATS; a file that ends the process is told with its line, and leaves routing."""
    file = tmp_path / "mine.py"
    file.write_text(
        "import sys\n"
        "async def generate(request):\n"
        "    if request['stop_conditions']['max_tokens'] == 13:\n"
        "        sys.exit('had enough')\n"
        "    for token in b'tokens':\n"
        "        yield {'token_ids': [token]}\n"
    )
    worker = [*RUN, "in=dyn://ns.backend.generate", f"out=pytok:{file}", "--model-name", "mine"]
    front = [*RUN, "in=http", "out=dyn", "--http-port", "0"]
    with (
        Process("worker", worker, tmp_path, servers) as serving,
        Process("front", front, tmp_path, servers) as asking,
        openai.OpenAI(base_url=f"{asking.ready_line()['url']}/v1", api_key="none", max_retries=0) as client,
    ):
        serving.ready_line()
        eventually("the model is listed", lambda: models(client) == ["mine"], 60)
        made = client.completions.create(model="mine", prompt="hi", max_tokens=50)
        assert (made.choices[0].text, made.choices[0].finish_reason) == ("tokens", "stop")
        assert client.completions.create(model="mine", prompt="hi", max_tokens=2).choices[0].text == "to"
        with pytest.raises(openai.InternalServerError, match=r"mine\.py:4 in generate: SystemExit: had enough"):
            client.completions.create(model="mine", prompt="hi", max_tokens=13)
        assert serving.popen.wait(30) == 1
        last = serving.text().splitlines()[-1]
        assert last.startswith("Error: the engine died: ")
        assert "mine.py:4 in generate" in last
        eventually("the model is gone", lambda: models(client) == [])
        assert asking.stop(60) == 0
