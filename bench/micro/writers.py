"""What a token costs the writer of each API, streamed: `PYTHONPATH=. .venv/bin/python -m bench.micro.writers`.

Writers only, without sockets; CPU time, best of five.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from tests.frontend.responses import event_readers as forms

from dynamo.frontend.openai.constraints import Parsing, parsing_of
from dynamo.frontend.responses.parsed_response import ParsedStream
from dynamo.frontend.responses.response import Response, ResponseOptions, SseResponse
from dynamo.llm.model_card import ModelCard
from dynamo.llm.parsers.factory import ParserFactory

TOKENS: Final = 100_000
TEXT: Final = " token"
CARD: Final = ModelCard(name="m", tool_call_parser="hermes", reasoning_parser="qwen3")
TOOLS: Final = [{"type": "function", "function": {"name": "f"}}]


def cost(form: Callable[..., Response], parsing: Parsing | None) -> float:
    """Return the nanoseconds per token."""
    output, choice = forms.Output(), forms.Spoken("stop")
    options = ResponseOptions(chat=True, choices=1, parsing=parsing)
    answer = form(forms.WHO, options, output, output, headers=[], meter=None, first_token=lambda: None)
    spoken: Any = choice
    answer.choices = [spoken]
    for _ in range(2):  # the beginning isn't a token's
        answer.text(spoken, TEXT)
    text = answer.text
    began = time.process_time()
    for _ in range(TOKENS):
        text(spoken, TEXT)
    return (time.process_time() - began) / TOKENS * 1e9


def main() -> None:
    """Print a line for each API, with and without parsers."""
    made: dict[str, tuple[Callable[..., Response], Callable[..., Response]]] = {
        "chat": (SseResponse, ParsedStream),
        "responses": (forms.responses_form(True),) * 2,
        "messages": (forms.messages_form(True),) * 2,
    }
    for name, (plain, parsed) in made.items():
        parsing = parsing_of(ParserFactory.of(CARD, None), {"tools": TOOLS}, None)
        costs = [min(cost(form, how) for _ in range(5)) for form, how in ((plain, None), (parsed, parsing))]
        print(f"{name:10} {costs[0]:6.0f} ns, with parsers {costs[1]:6.0f} ns")


if __name__ == "__main__":
    main()
