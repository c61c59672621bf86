"""The mocker answers what any client asks: a frontend, the engine as it is served, and OpenAI's SDK."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from tests.frontend.conftest import QUICK, Site
from tests.waiting import eventually

from dynamo.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.main import load_model
from dynamo.worker.settings import WorkerSettings

ASK: Any = [{"role": "user", "content": "And the weather?"}]
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("get_weather", "get_time")
]
CALLS: Any = [{"role": "user", "content": 'Please call get_weather {"city": "Paris"} call get_time {"zone": [1, "}"]}'}]


class Mockers:
    """A frontend with mockers, as they are served."""

    def __init__(self) -> None:
        self.site = Site(QUICK)
        self.served: list[tuple[DistributedRuntime, Any]] = []

    def add(self, name: str, *, speed: float = 0, parsed: bool = False) -> tuple[DistributedRuntime, Any]:
        """Serve one more; returns once it is routed to."""
        parsers = {"dyn_tool_call_parser": "hermes", "dyn_reasoning_parser": "qwen3"} if parsed else {}
        settings = WorkerSettings(
            engine="mocker", model_name=name, engine_args=json.dumps({"speedup_ratio": speed}), context_length=8192,
            endpoint=f"test.{name}.generate", migration_limit=3, **parsers,  # type: ignore[arg-type] # only texts
        )  # fmt: skip

        async def run() -> tuple[DistributedRuntime, Any]:
            model = load_model(settings)
            runtime = await DistributedRuntime.in_memory(self.site.world)
            self.site.workers.append(runtime)
            return runtime, await serve_engine(runtime, create_engine(settings, model), model, settings)

        made = self.site.run(run())
        self.served.append(made)
        eventually("it is routed to", lambda: made[0].id in self.site.instances(), 10)
        return made


@pytest.fixture(scope="module")
def mockers() -> Iterator[Mockers]:
    """A mocker called `m`, and `thinker`, whose answers are parsed."""
    mockers = Mockers()
    try:
        mockers.add("m")
        mockers.add("thinker", parsed=True)
        yield mockers
        for _, serving in mockers.served:
            mockers.site.run(serving.stop(0.0))
    finally:
        mockers.site.close()


@pytest.fixture(scope="module")
def site(mockers: Mockers) -> Site:
    """The frontend."""
    return mockers.site


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[openai.OpenAI]:
    """The SDK."""
    with site.client() as client:
        yield client


def test_it_ends_by_itself(client: openai.OpenAI) -> None:
    """Some hundred tokens where nobody says how many, as many for the same prompt; exactly those that are asked for."""
    lengths = []
    for text in ("one", "two", "two"):
        made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        assert made.usage is not None
        assert made.choices[0].finish_reason == "stop"
        lengths.append(made.usage.completion_tokens)
    assert lengths[1] == lengths[2] != lengths[0]
    assert all(100 <= length < 400 for length in lengths)
    exact = client.chat.completions.create(model="m", messages=ASK, max_tokens=777)
    assert exact.usage is not None
    assert (exact.usage.completion_tokens, exact.choices[0].finish_reason) == (777, "length")


class Person(pydantic.BaseModel):
    """A schema as clients have them."""

    model_config = pydantic.ConfigDict(extra="forbid")
    name: str
    age: int
    tags: list[str]
    born: str | None


def test_answers_keep_to_their_constraint(client: openai.OpenAI) -> None:
    """A schema by the SDK's own parser, an expression, choices, a grammar; a seed decides, and streams say the same."""
    parsed = client.chat.completions.parse(model="m", messages=ASK, response_format=Person).choices[0]
    assert isinstance(parsed.message.parsed, Person)
    assert parsed.finish_reason == "stop"
    texts = []
    for seed in (1, 2, 1):
        asked: Any = {"model": "m", "messages": ASK, "seed": seed, "response_format": {"type": "json_object"}}
        texts.append(client.chat.completions.create(**asked).choices[0].message.content)
        assert isinstance(json.loads(texts[-1] or ""), dict)
    assert texts[0] == texts[2]
    for extra, pattern in (
        ({"guided_regex": r"[A-Z]{3}-\d{4}"}, r"[A-Z]{3}-\d{4}"),
        ({"guided_choice": ["red", "green"]}, "red|green"),
        ({"guided_grammar": 'root ::= "yes" | "no, " [a-z]+ "."'}, r"yes|no, [a-z]+\."),
    ):
        whole = client.chat.completions.create(model="m", messages=ASK, extra_body=extra).choices[0]
        assert re.fullmatch(pattern, whole.message.content or ""), whole
        stream = client.chat.completions.create(model="m", messages=ASK, extra_body=extra, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.message.content
    cut = client.chat.completions.create(
        model="m", messages=ASK, max_tokens=3, extra_body={"guided_regex": "[a-z]{20}"}
    ).choices[0]
    assert (cut.finish_reason, len(cut.message.content or "")) == ("length", 3)
    with pytest.raises(openai.BadRequestError, match="guided decoding"):
        client.chat.completions.create(model="m", messages=ASK, extra_body={"guided_regex": "[a-"})


@pytest.mark.parametrize("model", ["m", "thinker"])
def test_calls_that_are_forced(client: openai.OpenAI, model: str) -> None:
    """`required`, a named tool, and one of those that are allowed: arguments fit, and stream in pieces."""
    named: Any = {"type": "function", "function": {"name": "get_time"}}
    allowed: Any = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]},
    }
    for choice in ("required", named, allowed):
        asked: Any = {"model": model, "messages": ASK, "tools": TOOLS, "tool_choice": choice}
        whole = client.chat.completions.create(**asked).choices[0]
        assert whole.finish_reason == "tool_calls"
        for call in whole.message.tool_calls:
            assert call.function.name in (("get_weather", "get_time") if choice == "required" else ("get_time",))
            assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")
        with client.chat.completions.stream(**asked) as stream:
            message = stream.get_final_completion().choices[0].message
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls or ()] == [
            (call.function.name, call.function.arguments) for call in whole.message.tool_calls
        ]


def test_calls_and_thoughts_that_the_model_decides_on(client: openai.OpenAI) -> None:
    """A prompt that ends with calls gets them, side by side, behind a thought; others get a thought and text."""
    whole = client.chat.completions.create(model="thinker", messages=CALLS, tools=TOOLS).choices[0]
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in whole.message.tool_calls or ()]  # type: ignore[union-attr]
    assert calls == [("get_weather", {"city": "Paris"}), ("get_time", {"zone": [1, "}"]})]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", None)
    stream = client.chat.completions.create(model="thinker", messages=CALLS, tools=TOOLS, stream=True)
    deltas = [delta for chunk in stream for delta in chunk.choices[0].delta.tool_calls or ()]
    arguments = [
        "".join(d.function.arguments or "" for d in deltas if d.index == index and d.function) for index in (0, 1)
    ]
    assert [json.loads(text) for text in arguments] == [{"city": "Paris"}, {"zone": [1, "}"]}]
    assert len(deltas) > 10, "arguments leave while they are written"
    answered = [
        *CALLS,
        {"role": "assistant", "tool_calls": [call.model_dump() for call in whole.message.tool_calls or ()]},
    ]
    answered += [
        {"role": "tool", "tool_call_id": call.id, "content": "It is sunny there, and it is ten."}
        for call in whole.message.tool_calls or ()
    ]
    after = client.chat.completions.create(model="thinker", messages=answered, tools=TOOLS).choices[0].message
    assert not after.tool_calls
    assert after.reasoning_content == "I say what I always say."  # type: ignore[attr-defined]
    assert "quick brown fox" in (after.content or "")


def test_thoughts_and_what_stands_behind_them(client: openai.OpenAI) -> None:
    """The answer begins behind the thought; a client can switch the thought off."""
    thinks = client.chat.completions.create(model="thinker", messages=ASK, max_tokens=150).choices[0].message
    assert getattr(thinks, "reasoning_content", None)
    assert (thinks.content or "").strip().startswith("The quick brown fox")
    for switch in ({"reasoning_effort": "none"}, {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}):
        plain: Any = client.chat.completions.create(model="thinker", messages=ASK, max_tokens=150, **switch)
        assert not getattr(plain.choices[0].message, "reasoning_content", None)
        assert plain.choices[0].message.content.strip().startswith("The quick brown fox")


def test_functions_as_they_were_before_tools(client: openai.OpenAI) -> None:
    """Asked by `functions`, a call comes as `function_call`, and goes back so with the function's answer."""
    asked: Any = {"model": "thinker", "messages": CALLS, "functions": [tool["function"] for tool in TOOLS]}
    whole = client.chat.completions.create(**asked).choices[0]
    call = whole.message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments), whole.finish_reason) == (
        "get_weather",
        {"city": "Paris"},
        "function_call",
    )
    stream = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    parts = [chunk.delta.function_call for chunk in stream if chunk.delta.function_call]
    assert "".join(part.name or "" for part in parts) == call.name
    assert "".join(part.arguments or "" for part in parts) == call.arguments
    assert stream[-1].finish_reason == "function_call"
    forced = client.chat.completions.create(**{**asked, "messages": ASK}, function_call={"name": "get_time"})
    assert forced.choices[0].message.function_call is not None
    assert forced.choices[0].message.function_call.name == "get_time"
    asked["messages"] = [*CALLS, {"role": "assistant", "content": None, "function_call": call.model_dump()},
                         {"role": "function", "name": "get_weather", "content": "Sunny all day, no wind"}]  # fmt: skip
    assert client.chat.completions.create(**asked).choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
         "tool_choice.allowed_tools"),
        ({"functions": [{"name": "f"}], "tools": TOOLS}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"functions": [{}]}, "functions[0].name"),
    ],
)  # fmt: skip
def test_what_tools_can_not_be(site: Site, fields: dict[str, Any], param: str) -> None:
    """Refused by name."""
    answer = site.post("/v1/chat/completions", {"model": "m", "messages": ASK, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_log_probabilities(client: openai.OpenAI) -> None:
    """Of chats, of completions and of an echoed prompt: one per token, the same each time, the likeliest first."""
    chat = client.chat.completions.create(model="m", messages=ASK, max_tokens=5, logprobs=True, top_logprobs=3)
    assert chat.choices[0].logprobs is not None
    rows = chat.choices[0].logprobs.content or []
    assert [len(row.top_logprobs) for row in rows] == [3] * 5
    assert all(row.top_logprobs[0].token == row.token and row.logprob < 0 for row in rows)
    asked: Any = {"model": "m", "prompt": "Hello", "max_tokens": 2, "logprobs": 2, "echo": True}
    made = [client.completions.create(**asked).choices[0] for _ in range(2)]
    assert made[0] == made[1]
    assert made[0].logprobs is not None
    assert made[0].logprobs.tokens is not None
    assert "".join(made[0].logprobs.tokens) == made[0].text
    assert made[0].logprobs.token_logprobs is not None
    assert made[0].logprobs.token_logprobs[0] is None
    assert all(number < 0 for number in made[0].logprobs.token_logprobs[1:])
    tops = made[0].logprobs.top_logprobs
    assert tops is not None
    assert [len(top) for top in tops[1:]] == [2] * 6


def test_a_call_survives_its_worker(mockers: Mockers, client: openai.OpenAI) -> None:
    """Where the worker goes away in the middle of arguments, another one goes on, and they are whole."""
    two = [mockers.add("slow", speed=4, parsed=True) for _ in range(2)]
    text = json.dumps({"city": "Paris", "why": "so " * 60})
    ask: Any = [{"role": "user", "content": f"call get_weather {text}"}]
    arguments, stopped = "", False
    for chunk in client.chat.completions.create(model="slow", messages=ask, tools=TOOLS, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += (call.function.arguments or "") if call.function else ""
        if len(arguments) > 40 and not stopped:
            stopped = True
            (busy,) = [runtime for runtime, serving in two if serving.engine.load().running]
            mockers.site.stop_worker(busy, 0)
    assert stopped
    assert arguments == text


LONG: Any = [
    {"type": "function", "function": {"name": "note", "strict": True, "parameters": {
        "type": "object", "properties": {f"line_{n}": {"enum": [f"a line of text {n}"]} for n in range(12)},
        "required": [f"line_{n}" for n in range(12)], "additionalProperties": False}}}
]  # fmt: skip


def test_a_forced_call_survives_its_worker(mockers: Mockers, client: openai.OpenAI) -> None:
    """The same of a call that keeps to its schema: the next engine goes on within it."""
    two = [mockers.add("forced", speed=4) for _ in range(2)]
    arguments, stopped = "", False
    for chunk in client.chat.completions.create(
        model="forced", messages=ASK, tools=LONG, tool_choice="required", stream=True
    ):
        for call in chunk.choices[0].delta.tool_calls or ():
            arguments += (call.function.arguments or "") if call.function else ""
        if len(arguments) > 40 and not stopped:
            stopped = True
            (busy,) = [runtime for runtime, serving in two if serving.engine.load().running]
            mockers.site.stop_worker(busy, 0)
    assert stopped
    assert json.loads(arguments) == {f"line_{n}": f"a line of text {n}" for n in range(12)}


def test_tokens_that_an_answer_may_have(client: openai.OpenAI) -> None:
    """Biases of 100, allowed tokens and bad words hold, in OpenAI's words and in vLLM's; bytes are tokens here."""
    usual = client.completions.create(model="m", prompt="x", max_tokens=60).choices[0].text
    assert "quick" in usual

    def said(**extra: Any) -> str:
        made = client.completions.create(model="m", prompt="x", max_tokens=60, extra_body=extra)
        return made.choices[0].text

    assert said(logit_bias={str(ord("z")): 100}) == "z" * 60
    assert "o" not in said(logit_bias={str(ord("o")): -100})
    assert set(said(allowed_token_ids=[ord("q"), ord("u")])) == {"q", "u"}
    without = said(bad_words=["quick", "e"])
    assert "quick" not in without
    assert "e" not in without
    assert "brown" in without


def test_a_prompt_is_cut_at_its_beginning(client: openai.OpenAI) -> None:
    """`truncate_prompt_tokens` keeps the last tokens, of a chat's prompt and of ids, too."""
    for prompt in ("abcdefgh", [97, 98, 99, 100, 101]):
        made = client.completions.create(
            model="m", prompt=prompt, max_tokens=1, extra_body={"truncate_prompt_tokens": 3}
        )
        assert made.usage is not None
        assert made.usage.prompt_tokens == 3
    long = client.completions.create(
        model="m", prompt="a" * 9000, max_tokens=92, extra_body={"truncate_prompt_tokens": -1}
    )
    assert long.usage is not None
    assert long.usage.prompt_tokens == 8100
    chat = client.chat.completions.create(
        model="m", messages=ASK, max_tokens=1, extra_body={"truncate_prompt_tokens": 5}
    )
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == 5


def test_more_than_a_context_is_kept_of_no_prompt(client: openai.OpenAI) -> None:
    """As vLLM refuses it."""
    with pytest.raises(openai.BadRequestError, match="context holds 8192"):
        client.completions.create(model="m", prompt="a", max_tokens=1, extra_body={"truncate_prompt_tokens": 8193})


def test_a_salt_keeps_caches_apart(client: openai.OpenAI) -> None:
    """A prompt is cached for its own salt only, as a field and in `nvext`."""

    def cached(**extra: Any) -> int:
        made = client.completions.create(model="m", prompt="salted words " * 20, max_tokens=1, extra_body=extra)
        assert made.usage is not None
        assert made.usage.prompt_tokens_details is not None
        return made.usage.prompt_tokens_details.cached_tokens or 0

    assert cached() == 0
    assert cached() > 200
    assert cached(cache_salt="a") == 0
    assert cached(nvext={"cache_salt": "a"}) > 200
    assert cached(cache_salt="b") == 0


def test_custom_tools_of_chats(client: openai.OpenAI) -> None:
    """Their input is text, held to its grammar where the tool is forced; whole and streamed, and there and back."""
    forms: tuple[tuple[Any, str], ...] = (
        (None, r"(?s).*"),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{3}"}}, "[ab]{3}"),
        (
            {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "SELECT " ("a" | "b")'}},
            "SELECT [ab]",
        ),
    )
    for form, pattern in forms:
        custom = {"name": "code", "description": "Writes code."} | ({} if form is None else {"format": form})
        asked: Any = {
            "model": "thinker", "messages": ASK, "tools": [{"type": "custom", "custom": custom}, *TOOLS],
            "tool_choice": {"type": "custom", "custom": {"name": "code"}},
        }  # fmt: skip
        choice = client.chat.completions.create(**asked).choices[0]
        assert choice.message.tool_calls
        (call,) = choice.message.tool_calls
        assert call.type == "custom"
        assert call.custom.name == "code"
        assert re.fullmatch(pattern, call.custom.input), call
        assert choice.finish_reason == "tool_calls"
        deltas = [
            part for chunk in client.chat.completions.create(**asked, stream=True)
            for part in chunk.choices[0].delta.model_dump().get("tool_calls") or ()
        ]  # fmt: skip
        assert (deltas[0]["type"], deltas[0]["custom"]["name"]) == ("custom", "code")
        assert "".join(part["custom"]["input"] for part in deltas) == call.custom.input
    back = [
        *ASK,
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "1"},
    ]
    again = client.chat.completions.create(model="thinker", messages=back, tools=asked["tools"], max_tokens=1)
    assert again.usage is not None


def test_forced_calls_end_where_there_is_room_for_one(client: openai.OpenAI) -> None:
    """Whatever the seed, a hundred tokens are enough for a call; and what is cut behind it is no content."""
    for seed in range(8):
        choice = client.chat.completions.create(
            model="m", messages=ASK, tools=TOOLS, tool_choice="required", max_tokens=130, seed=seed
        ).choices[0]
        assert choice.finish_reason == "tool_calls", choice
        assert choice.message.content is None
    cut = client.chat.completions.create(
        model="m", messages=ASK, tools=TOOLS[:1], tool_choice="required", max_tokens=40
    ).choices[0]
    assert (cut.finish_reason, bool(cut.message.content)) == ("length", False)
