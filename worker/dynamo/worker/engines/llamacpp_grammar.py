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
    kind = next((name for name in GUIDED if name in wanted), None)
    if kind is None:
        raise InvalidArgument(f"guided decoding by {', '.join(sorted(wanted))}: llamacpp takes {', '.join(GUIDED)}")
    grammar = _written(kind, wanted[kind])
    if grammar.startswith(_LARK) and (wrong := _lark().LLMatcher.validate_grammar(grammar)):
        raise InvalidArgument(f"guided decoding ({kind}): {wrong.splitlines()[0]}")
    return grammar


def _written(kind: str, what: Any) -> str:
    if kind == "grammar":
        return str(what)
    if kind == "json":
        rule = f"%json {_schema(what)}"
    elif kind == "regex":
        rule = f"/{_lark().regex_to_lark(what)}/"
    else:
        rule = " | ".join(map(json.dumps, what))
    return f"{_LARK} {{}}\nstart: {rule}"


def _schema(what: Any) -> str:
    """On one line: in a text of a client's own there could be more rules behind it."""
    try:
        return json.dumps(json.loads(what) if isinstance(what, str) else what)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"guided decoding (json): the schema is no JSON: {error}") from error


def _lark() -> Any:
    try:
        import llguidance
    except ImportError as error:
        hint = "pip install 'dynamo-pipelines[llamacpp]'"
        raise InvalidArgument(f"guided decoding with llamacpp needs llguidance ({error}): {hint}") from error
    return llguidance
