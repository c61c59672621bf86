"""dynamo-run with a model that has no chat template: it says so once, and ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import piped
from tests.worker.chain_model import write_gguf

from dynamo.cli.conversation import CONTINUATION_TOKENS, Conversation
from dynamo.cli.run.session import continues_text, for_conversation
from dynamo.frontend.settings import FrontendSettings
from dynamo.llm.tokenizer.byte_level import ByteTokenizer
from dynamo.runtime.process.settings import build


def pool(tokenizer: Any, template: str | None) -> Any:
    preprocessor = SimpleNamespace(tokenizer=tokenizer, template_text=template)
    return SimpleNamespace(served=lambda: [SimpleNamespace(name="m", model=SimpleNamespace(preprocessor=preprocessor))])


@pytest.mark.parametrize(
    ("tokenizer", "template", "continues"),
    [(object(), None, True), (object(), "{{ messages }}", False), (ByteTokenizer(), None, False)],
)
def test_who_continues_text(tokenizer: Any, template: str | None, continues: bool) -> None:
    """A model with a tokenizer of its own and no template; not what echoes, and not who isn't there."""
    assert continues_text(pool(tokenizer, template), "m") is continues
    assert continues_text(pool(tokenizer, template), "other") is False


def test_a_continuation_is_short_and_announced() -> None:
    """Unless the request template says otherwise; a chat model's answers stay as they are, without a word."""
    talk = Conversation("m", continues=True)
    assert talk.ask("hi")["max_completion_tokens"] == CONTINUATION_TOKENS
    assert f"{CONTINUATION_TOKENS} tokens" in talk.note
    chosen = Conversation("m", {"max_completion_tokens": 7}, continues=True)
    assert chosen.ask("hi")["max_completion_tokens"] == 7
    assert "7 tokens" in chosen.note
    assert Conversation("m").note == ""


def test_a_conversation_loads_one_tokenizer_library() -> None:
    """The fast one takes seconds to load; who asks for it by name gets it."""
    settings = build(FrontendSettings)
    assert settings.tokenizer == "auto"
    assert for_conversation(settings).tokenizer == "default"
    insisted = build(FrontendSettings, tokenizer="fastokens")
    assert for_conversation(insisted).tokenizer == "fastokens"


@pytest.mark.processes(seconds=8)
def test_the_note_comes_before_the_answer(tmp_path: Path) -> None:
    """A real engine with a real file: one line on standard error, the answer alone on standard output."""
    file = write_gguf(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_template".upper()))
    done = piped(tmp_path, "abc\n", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("has no chat template") == 1
    assert done.stdout.strip()
