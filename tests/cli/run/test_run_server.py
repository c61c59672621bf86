"""`out=openai:URL`: a server that runs already, behind a frontend of ours, in whole processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest
from tests.cli.run.test_run_python import EXAMPLES
from tests.environments import environment, quick_environment
from tests.processes import RUN, Process, piped

pytestmark = pytest.mark.processes
PARSERS = ["--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "qwen3"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
ASK: Any = [{"role": "user", "content": "Paris"}]


def answer(url: str, stream: bool) -> tuple[Any, ...]:
    """What a client gets of a chat with a tool: thoughts, text, call, end and counts."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        if not stream:
            whole: Any = client.chat.completions.create(model="demo", messages=ASK, tools=TOOLS)
            message = whole.choices[0].message
            call = message.tool_calls[0].function
            end, usage = whole.choices[0].finish_reason, whole.usage
            return message.reasoning_content, message.content, call.name, call.arguments, end, usage.prompt_tokens
        chunks: Any = list(client.chat.completions.create(
            model="demo", messages=ASK, tools=TOOLS, stream=True, stream_options={"include_usage": True},
        ))  # fmt: skip
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
        ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        thoughts = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        text = "".join(delta.content or "" for delta in deltas) or None
        arguments = "".join(call.arguments or "" for call in calls)
        name = "".join(call.name or "" for call in calls)
        return thoughts, text, name, arguments, ends[-1], chunks[-1].usage.prompt_tokens


def test_a_server_answers_through_ours_as_by_itself(tmp_path: Path) -> None:
    """Thoughts, tool calls, ends and counts, streamed and whole; a server that is gone is an error that says so."""
    upstream = [*RUN, "in=http", f"out=pystr:{EXAMPLES / 'tools_engine.py'}", "--model-name", "demo", *PARSERS]
    with Process("upstream", [*upstream, "--http-port", "0"], tmp_path, quick_environment(tmp_path)) as server:
        url = server.ready_line()["url"]
        ours = [*RUN, "in=http", f"out=openai:{url}/v1", "--http-port", "0"]
        # A variable of the interpreter: started for real, since forked processes have no aiohttp.
        with Process("ours", ours, tmp_path, environment(tmp_path / "front", PYTHONNODEBUGRANGES="1")) as front:
            here = front.ready_line()["url"]
            for stream in (False, True):
                assert answer(here, stream) == answer(url, stream)
            with openai.OpenAI(base_url=f"{here}/v1", api_key="none", max_retries=0) as client:
                assert server.stop(60) == 0
                with pytest.raises(openai.APIStatusError) as gone:
                    client.chat.completions.create(model="demo", messages=ASK)
                assert gone.value.status_code == 503
            assert front.stop(60) == 0


def test_an_address_that_is_none(tmp_path: Path) -> None:
    """A typo is one line, before anything starts."""
    for word in ("out=openai", "out=openai:localhost:8000"):
        done = piped(tmp_path, "hi\n", word)
        assert (done.returncode, "out=openai:http://HOST:PORT/v1" in done.stderr) == (2, True), done.stderr
