"""What constrains an answer, in llama.cpp's words: GBNF, or Lark behind a first line that says so (`llguidance`).

llama.cpp drops a Lark grammar, and so a JSON schema, that it can't compile, and answers without it. So what is not
GBNF is compiled here first, by the same library: an answer that doesn't keep to its schema is worse than none.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import GUIDED

_LARK: Final = "%llguidance"


def grammar_of(wanted: dict[str, Any] | None) -> str | None:
    """The grammar to ask for; `InvalidArgument` says what is wrong with what was wanted. May take milliseconds."""
    if not wanted:
        return None
    if "grammar" in wanted:
        grammar = str(wanted["grammar"])
    elif "json" in wanted:
        schema = wanted["json"]
        grammar = f"{_LARK} {{}}\nstart: %json {schema if isinstance(schema, str) else json.dumps(schema)}"
    elif "regex" in wanted:
        grammar = f"{_LARK} {{}}\nstart: /{_lark().regex_to_lark(wanted['regex'])}/"
    elif "choice" in wanted:
        grammar = f"{_LARK} {{}}\nstart: {' | '.join(map(json.dumps, wanted['choice']))}"
    else:
        raise InvalidArgument(f"guided decoding by {', '.join(sorted(wanted))}: llamacpp takes {', '.join(GUIDED)}")
    if grammar.startswith(_LARK) and (wrong := _lark().LLMatcher.validate_grammar(grammar)):
        (kind,) = sorted(wanted)[:1]
        raise InvalidArgument(f"guided decoding ({kind}): {wrong.splitlines()[0]}")
    return grammar


def _lark() -> Any:
    try:
        import llguidance
    except ImportError as error:
        hint = "pip install 'dynamo-pipelines[llamacpp]'"
        raise InvalidArgument(f"guided decoding with llamacpp needs llguidance ({error}): {hint}") from error
    return llguidance
