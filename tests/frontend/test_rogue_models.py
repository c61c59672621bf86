"""Models of a rogue worker: their files and answers cost the other models nothing but a sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.llm.models import hostile_files
from tests.llm.processing import hostile_templates

from dynamo.llm.model_card import FileRef, ModelCard
from dynamo.llm.models.file_cache import FileCache
from dynamo.llm.protocols import delta

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture
def keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FileRef]:
    """Puts a file where the frontend looks for it before it asks the worker."""
    monkeypatch.setenv("DYN_CACHE_DIR", str(tmp_path))
    return FileCache(tmp_path).keep


def failed(site: Any, name: str) -> str:
    """Why a model isn't served; empty while it is, or is being loaded."""
    value = httpx.get(site.url + "/health").json()["models"].get(name, {})
    return str(value.get("reason", "")) if value.get("status") == "failed" else ""


@pytest.mark.parametrize("name", ["pieces of no length", "a table of characters that is larger than itself"])
def test_a_tokenizer_that_makes_its_library_panic(
    keep: Callable[..., FileRef], make_site: Any, echo: Any, within: Any, name: str
) -> None:
    """The model has failed, with the reason, and isn't being loaded for ever; the frontend serves the others."""
    ref = keep(hostile_files.TOKENIZER_JSON[name](), "tokenizer.json")
    site = make_site()
    site.worker(echo)
    card = ModelCard(name="rogue", tokenizer="hf", files={"tokenizer": ref}).to_dict()
    site.worker(echo, wait=False, card=card)
    within("the model has failed", lambda: failed(site, "rogue"))
    assert "tokenizer" in failed(site, "rogue")
    answer = site.post(CHAT, {"model": "rogue", "messages": ASK})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert site.post(CHAT, {"model": "m", "messages": ASK, "max_tokens": 3}).status_code == 200


@pytest.mark.parametrize(
    "name", ["doubling by ~", "loops in loops", "macros that call themselves twice", "printing what is nested"]
)
def test_a_template_without_end(keep: Callable[..., FileRef], make_site: Any, echo: Any, name: str) -> None:
    """31 doublings stalled the event loop for 28 s and took 3.2 GB; its callers read whose fault it is."""
    ref = keep(hostile_templates.AT_RENDERING[name].encode(), "chat_template.jinja")
    site = make_site()
    site.worker(echo)
    site.worker(echo, "rogue", files={"chat_template": ref})
    answer = site.post(CHAT, {"model": "rogue", "messages": ASK})
    assert (answer.status_code, "chat template" in answer.json()["error"]["message"]) == (400, True)
    assert site.post(CHAT, {"model": "m", "messages": ASK, "max_tokens": 3}).status_code == 200


@pytest.mark.parametrize("parser", ["mistral", "pythonic", "hermes"])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_runs_away(site: Any, engines: Any, parser: str, stream: bool) -> None:
    """Spaces behind a marker: 2 KB of them stalled the event loop for 27 s."""
    text = {"mistral": "[TOOL_CALLS]name", "pythonic": "[name", "hermes": "<tool_call>"}[parser] + " " * 20_000

    class Runaway(engines):  # type: ignore[misc] # a class of the conftest's choice
        async def speak(self, incoming: Any, payload: dict[str, Any]) -> None:
            for at in range(0, len(text), 500):
                for token in text[at : at + 500].encode():
                    incoming.send(self.say(payload, token, None))
            incoming.finish(delta([], "stop"))

    site.worker(Runaway(), tool_call_parser=parser, context_length=100_000)
    answer = site.post(CHAT, {"model": "m", "messages": ASK, "tools": TOOLS, "stream": stream})
    assert answer.status_code == 200
    if not stream:
        assert answer.json()["choices"][0]["message"]["content"] == text
