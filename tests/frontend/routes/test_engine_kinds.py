"""One table of cases, the same for engines that take text and for those that take tokens, through frontend and worker.

`echo_full` is a text engine, the others take tokens; the echoes answer with the prompt, the real engines with what
their model has after it (`chain_model.py`): each case's two prompts are chosen so that all answer alike. vLLM is one of
them where it is installed and named (`make test-vllm`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.frontend.conftest import QUICK, Site
from tests.waiting import eventually
from tests.worker.engine_rigs import NAMES, RIGS, Rig

from dynamo.llm import Tokenizer
from dynamo.runtime import DistributedRuntime
from dynamo.worker.instance.serving import Serving, serve_engine

ENGINES = [name for name in ("echo_core", "echo_full", "llamacpp", "mistralrs", "vllm") if name in NAMES]
START_SECONDS = 900
"""Of an engine that lives in an environment of its own, on a busy machine."""
LONG = "bcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLM"
RARE = "é🦜"


class Case(NamedTuple):
    """What is asked, and what every engine answers."""

    name: str
    ask: dict[str, Any]
    text: str | None
    """Of each choice; None: refused as the caller's mistake."""
    finish: str = "length"
    tokens: int | tuple[int, int] = 0
    """Of each choice; where they differ, the echoes' and the models'."""
    stop_reason: Any = None
    """A text: of a stop string, or `id:` and the text of a stop token."""
    echoed: str = LONG
    prompt: str = "a"
    """For the models, where the echoes are asked `echoed`."""
    vllm: str = ""
    """Text of vLLM, where its own rule for it is another; empty: as of all."""


def stops(*texts: str, most: int = 12, **more: Any) -> dict[str, Any]:
    return {"stop": list(texts), "max_tokens": most, **more}


def at(text: str, most: int = 12, **more: Any) -> dict[str, Any]:
    """With the ids of these characters as stop tokens."""
    return {"stop_token_ids": text, "max_tokens": most, **more}


def rare(name: str, ask: dict[str, Any], text: str, finish: str, tokens: int, reason: Any = None) -> Case:
    return Case(name, ask, text, finish, tokens, reason, RARE + "xyz", "0")


def end(name: str, ask: dict[str, Any], text: str, finish: str, tokens: Any, echoed: str = "45") -> Case:
    return Case(name, ask, text, finish, tokens, None, echoed, "3")


def chat(most: int, **more: Any) -> dict[str, Any]:
    return {"messages": True, "max_tokens": most, **more}


CASES = [
    Case("one token", {"max_tokens": 1}, "b", tokens=1),
    Case("five tokens", {"max_tokens": 5}, "bcdef", tokens=5),
    Case("sixteen where nothing is said", {}, "bcdefghijklmnopq", tokens=16),
    Case("no token", {"max_tokens": 0}, ""),
    Case("a stop string", stops("fg"), "bcde", "stop", 6, "fg"),
    Case("a stop string of one character", stops("f"), "bcde", "stop", 5, "f"),
    Case("a stop string at once", stops("b"), "", "stop", 1, "b"),
    Case("a stop string alone, not in a list", {"stop": "de", "max_tokens": 9}, "bc", "stop", 4, "de"),
    Case("the stop string that is complete first", stops("gh", "ef"), "bcd", "stop", 5, "ef"),
    Case("of two that end together, the longer", stops("ef", "def"), "bc", "stop", 5, "def"),
    Case("a stop string that never comes", stops("zebra", most=6), "bcdefg", tokens=6),
    Case("a stop string half there at the end", stops("fgX", most=6), "bcdefg", tokens=6),
    Case("a stop string that ends with the last token", stops("fg", most=6), "bcde", "stop", 6, "fg"),
    Case("a stop string with a space", stops("z A", most=40), "bcdefghijklmnopqrstuvwxy", "stop", 27, "z A"),
    Case("a stop string that is shown", stops("fg", include_stop_str_in_output=True), "bcdefg", "stop", 6, "fg"),
    Case("an empty stop string", stops(""), None),
    Case("a stop string below min_tokens", stops("de", most=8, min_tokens=6), "bcdefghi", tokens=8),
    Case("a stop string above min_tokens", stops("gh", min_tokens=3), "bcdef", "stop", 7, "gh"),
    Case("min_tokens as many as max_tokens", stops("d", most=4, min_tokens=4), "bcde", tokens=4),
    Case("min_tokens above max_tokens", {"max_tokens": 3, "min_tokens": 4}, None),
    Case("a stop token", at("f"), "bcde", "stop", 5, "id:f"),
    Case("the first of two stop tokens", at("he"), "bcd", "stop", 4, "id:e"),
    Case("a stop token that is shown", at("f", include_stop_str_in_output=True), "bcdef", "stop", 5, "id:f"),
    # To vLLM a stop token is one that can't come before `min_tokens`: the next likely one comes.
    Case("a stop token below min_tokens", at("d", most=6, min_tokens=5), "bcdefg", tokens=6, vllm="bc<unk>abc"),
    Case("a stop token that never comes", at("Z", most=4), "bcde", tokens=4),
    Case("a stop token before a stop string", at("e", stop=["fg"]), "bcd", "stop", 4, "id:e"),
    Case("a stop string before a stop token", at("h", stop=["de"]), "bc", "stop", 4, "de"),
    rare("half a character", {"max_tokens": 1}, "", "length", 1),
    rare("one of two tokens", {"max_tokens": 2}, "é", "length", 2),
    rare("half of one of four", {"max_tokens": 4}, "é", "length", 4),
    rare("both", {"max_tokens": 6}, RARE, "length", 6),
    rare("a stop string of four tokens", stops("🦜"), "é", "stop", 6, "🦜"),
    rare("a stop string that ends one", stops("é🦜"), "", "stop", 6, "é🦜"),
    rare("a rare one below min_tokens", stops("é", most=6, min_tokens=3), RARE, "length", 6),
    end("the text ends", {"max_tokens": 9}, "45", "stop", (2, 3)),
    # In vLLM an EOS that is ignored comes, and counts.
    end("it would end", {"max_tokens": 5, "ignore_eos": True}, "45xyz", "length", 5, "45xyz")._replace(vllm="45xy"),
    end("it may not end yet", {"max_tokens": 5, "min_tokens": 5}, "45xyz", "length", 5, "45xyz"),
    Case("two choices", {"max_tokens": 3, "n": 2}, "bcd", tokens=3),
    Case("three choices with a stop string", stops("de", n=3), "bc", "stop", 4, "de"),
    Case("two prompts", {"max_tokens": 3, "prompts": 2}, "bcd", tokens=3),
    Case("two prompts of two choices", {"max_tokens": 3, "prompts": 2, "n": 2}, "bcd", tokens=3),
    Case("the prompt before the answer", {"max_tokens": 3, "echo": True}, "bcd", tokens=3),
    Case("the prompt before a stop string", stops("de", echo=True), "bc", "stop", 4, "de"),
    Case("the prompt before two choices", {"max_tokens": 2, "echo": True, "n": 2}, "bc", tokens=2),
    Case("a chat", chat(4), "bcde", tokens=4),
    Case("a chat with a stop string", chat(12, stop=["fg"]), "bcde", "stop", 6, "fg"),
    Case("a chat with two choices", chat(2, n=2), "bc", tokens=2),
]


class Served(NamedTuple):
    """A frontend, and the tokenizer of each engine behind it."""

    site: Site
    tokenizers: dict[str, Tokenizer]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """All engines behind one frontend, each a model of its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "0")
        site = Site(replace(QUICK))
        servings: list[Serving] = []
        try:
            yield Served(site, {name: start(site, name, servings) for name in ENGINES})
        finally:
            for serving in servings:
                site.run(serving.stop(0.0), within=60)
            site.close()


def start(site: Site, name: str, servings: list[Serving]) -> Tokenizer:
    rig = Rig(name)
    model = replace(rig.model, card=msgspec.structs.replace(rig.model.card, name=name))
    settings = replace(rig.settings, endpoint=f"test.{name}.generate")

    async def run() -> DistributedRuntime:
        runtime = await DistributedRuntime.in_memory(site.world)
        site.workers.append(runtime)
        servings.append(await serve_engine(runtime, rig.engine, model, settings))
        return runtime

    runtime = site.run(run(), within=START_SECONDS if RIGS[name].apart else 20)
    eventually("it is routed to", lambda: runtime.id in site.instances(), 60)
    return rig.tokenizer


class Told(NamedTuple):
    """What a client got."""

    texts: list[str]
    finishes: set[str]
    stop_reasons: set[Any]
    usage: dict[str, Any]


def whole(body: dict[str, Any]) -> Told:
    choices = body["choices"]
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in choices]
    return Told(texts, {c["finish_reason"] for c in choices}, {c.get("stop_reason") for c in choices}, body["usage"])


def streamed(text: str) -> Told:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    texts: dict[int, str] = {}
    ends: dict[int, tuple[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
        texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
        if choice["finish_reason"]:
            ends[choice["index"]] = (choice["finish_reason"], choice.get("stop_reason"))
    assert ends.keys() == texts.keys()
    return Told(
        [texts[index] for index in sorted(texts)], {e for e, _ in ends.values()}, {r for _, r in ends.values()},
        events[-1]["usage"],
    )  # fmt: skip


def asked(case: Case, engine: str, tokenizer: Tokenizer, stream: bool) -> tuple[str, dict[str, Any], str]:
    """Path, body and the prompt's text."""
    body = {"model": engine, "temperature": 0, **case.ask}
    prompt = case.echoed if engine.startswith("echo") else case.prompt
    if isinstance(characters := body.get("stop_token_ids"), str):
        body["stop_token_ids"] = [token for c in characters for token in tokenizer.encode(c, add_special=False)]
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if body.pop("messages", False):
        body |= {"messages": [{"role": "user", "content": prompt}], "nvext": {"use_raw_prompt": True}}
        return "/v1/chat/completions", body, prompt
    count = body.pop("prompts", 1)
    return "/v1/completions", {**body, "prompt": prompt if count == 1 else [prompt] * count}, prompt


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_table(served: Served, case: Case, engine: str, stream: bool) -> None:
    """Text, finish reason, what stopped it, and usage are those of the table."""
    tokenizer = served.tokenizers[engine]
    path, body, prompt = asked(case, engine, tokenizer, stream)
    answer = served.site.post(path, body)
    nothing_made = case.ask.get("max_tokens") == 0  # a prompt is scored whole, and by ids
    if case.text is None or (nothing_made and (stream or engine == "echo_full")):
        assert answer.status_code == 400, answer.text
        return
    assert answer.status_code == 200, answer.text
    answer_text = streamed(answer.text) if stream else whole(answer.json())
    echoes, choices, prompts = engine.startswith("echo"), body.get("n", 1), case.ask.get("prompts", 1)
    expected = (prompt if case.ask.get("echo") else "") + (case.vllm if engine == "vllm" and case.vllm else case.text)
    assert answer_text.texts == [expected] * (choices * prompts)
    reason = case.stop_reason
    if isinstance(reason, str) and reason.startswith("id:"):
        (reason,) = tokenizer.encode(reason.removeprefix("id:"), add_special=False)
    assert (answer_text.finishes, answer_text.stop_reasons) == ({case.finish}, {reason})
    tokens = case.tokens if isinstance(case.tokens, int) else case.tokens[0 if echoes else 1]
    ids = tokenizer.encode(prompt, add_special="messages" not in body)
    assert answer_text.usage["prompt_tokens"] == len(ids) * prompts
    assert answer_text.usage["completion_tokens"] == tokens * choices * prompts


def test_the_table_is_long_enough() -> None:
    """No two cases have one name, and there are more than 40."""
    assert len({case.name for case in CASES}) == len(CASES) > 40
