"""A conversation as requests: what `dynamo-run in=text` and `in=stdin` ask the frontend.

Pure: the turns so far, and the OpenAI body of the next request, with the defaults that
dynamo-run always had (8192 tokens, temperature 0.7; fewer tokens where a model only continues text).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

MAX_COMPLETION_TOKENS: Final = 8192
CONTINUATION_TOKENS: Final = 128
"""Of a model that continues text: it doesn't end by itself, and what it says after this is more of the same."""
TEMPERATURE: Final = 0.7


@dataclass
class Conversation:
    """The turns so far and how requests are made of them."""

    model: str
    template: dict[str, Any] = field(default_factory=dict)
    """The fields of `--request-template`."""
    ignore_eos: bool = False
    """echo_core answers with the prompt, end markers included: they must not end it."""
    continues: bool = False
    """The model has no chat template."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> dict[str, Any]:
        """Add the user's turn; returns the body of the request."""
        self.messages.append({"role": "user", "content": text})
        body: dict[str, Any] = {
            "max_completion_tokens": CONTINUATION_TOKENS if self.continues else MAX_COMPLETION_TOKENS,
            "temperature": TEMPERATURE,
            "model": self.model,
            **self.template,
            "messages": list(self.messages),
            "stream": True,
        }
        return {**body, "ignore_eos": True} if self.ignore_eos else body

    @property
    def note(self) -> str:
        """Return what the person should know before the first answer, "" where there is nothing."""
        if not self.continues:
            return ""
        length = self.template.get("max_completion_tokens", CONTINUATION_TOKENS)
        return (
            f"{self.model} has no chat template: it continues text rather than answers, and stops after {length} "
            "tokens (--request-template). For a chat take a model whose name says Instruct, chat or it"
        )

    def answered(self, text: str) -> None:
        """Add the model's turn."""
        self.messages.append({"role": "assistant", "content": text})

    def clear(self) -> None:
        """Forget all turns."""
        self.messages.clear()

    def failed(self) -> None:
        """Forget the user's turn that got no answer, so that the next one is asked without it."""
        self.messages.pop()


def text_of(chunk: dict[str, Any]) -> str:
    """Return what a stream's event adds to the answer."""
    choices = chunk.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""
