"""What may constrain an answer, and how llguidance is told: bounds first, then a trial. Pure, apart from the library.

Whatever a client writes here would reach a parser in native code, in the thread that serves all. So it has bounds,
and is compiled once in a process of its own (`pool.py`), where a crash or a loop costs nobody else anything.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.worker.engine import GUIDED
from dynamo.worker.engines.constraints.gbnf import MOST_LEVELS, to_lark

MOST_TEXT: Final = 64 * 1024
"""Bytes of a grammar or a regular expression."""
MOST_SCHEMA: Final = 256 * 1024
MOST_CHOICES: Final = 4096
MOST_BYTES: Final = MOST_SCHEMA + 64 * 1024
"""Of all that constrains one answer, as it is sent."""
MOST_REFERENCES: Final = 1000
"""`$ref`s in a schema: a compiler goes into each of a chain."""
COMPILE_SECONDS: Final = 0.25
"""CPU time that a constraint may take: the engine's own thread takes as long once more."""
LARK: Final = "%llguidance"
COMPILED: Final = "compiled"
"""The name under which an engine gets the grammar that was made here of what the client wrote."""
WHITESPACE: Final = "whitespace_pattern"
_VALUES: Final = frozenset(("const", "enum", "default", "examples"))
"""Keywords whose values are no schemas."""
_LIMITS: Final = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const", "$ref")
)
_LARGEST: Final = 10**15 - 1
"""Every reader of JSON holds integers up to it exactly."""
OPTIONS: Final = "x-guidance"
"""Where llguidance looks in a schema for what it says of JSON's form."""
_DAY: Final = (
    r"(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|2000|2400)-02-29)"
)
_TIME: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:0[0-9]|1[0-4]):[0-5][0-9])"
_MOMENTS: Final = {"date": f"^{_DAY}$", "time": f"^{_TIME}$", "date-time": f"^{_DAY}T{_TIME}$"}
"""Formats whose own expressions in llguidance allow what is no day, or a second that hardly any minute has."""
_COUNTS: Final = {
    "minItems": 10_000, "maxItems": 10_000, "minProperties": 10_000, "maxProperties": 10_000,
    "minContains": 10_000, "maxContains": 10_000, "minLength": 1_000_000, "maxLength": 1_000_000,
}  # fmt: skip
_LARK_PIECES: Final = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])*/|//[^\n]*|[()\[\]{}]', re.DOTALL)
_REGEX_PIECES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", re.DOTALL)
_START: Final = re.compile(r"^\s*[?!]?start\s*:", re.MULTILINE)
_STEPS: Final = 6
"""Tokens that a trial makes, on each of its ways."""


def bounded(wanted: dict[str, Any]) -> str:
    """Raise `InvalidArgument` where a constraint is larger or deeper than one may be; the kind that it is of."""
    kinds = [name for name in GUIDED if name in wanted]
    if not kinds:
        raise InvalidArgument(f"guided decoding by {_short(wanted)}: it takes {', '.join(GUIDED)}")
    for kind in kinds:
        what = wanted[kind]
        if kind in ("grammar", "regex"):
            _check_text(kind, what)
        elif kind == "choice":
            _check_choices(what)
        else:
            _check_schema(what)
    if (pattern := wanted.get(WHITESPACE)) is not None:
        _check_text("regex", pattern)
    return kinds[0]


def lark_of(wanted: dict[str, Any], *, gbnf: bool = True) -> str:
    """Write the constraint in llguidance's words; `gbnf`: a grammar without its first line is in llama.cpp's form."""
    kind = bounded(wanted)
    what = wanted[kind]
    try:
        return _written(kind, what, gbnf, wanted.get(WHITESPACE))
    except InvalidArgument as error:
        raise InvalidArgument(f"guided decoding ({kind}): {error.message}") from error


def try_out(kind: str, grammar: str) -> None:
    """Compile a grammar and take some steps of it; `InvalidArgument` where it is wrong, or takes too long."""
    began = time.process_time()
    matcher = matcher_of(grammar)
    if matcher.is_error():
        raise InvalidArgument(f"guided decoding ({kind}): {matcher.get_error().splitlines()[0][:500]}")
    other = matcher.deep_copy()
    _walk(kind, matcher, b'[{"0a', began)
    _walk(kind, other, b"}]z,", began)


def matcher_of(grammar: str) -> Any:
    """Return the library's matcher of a grammar, byte by byte."""
    return _library().LLMatcher(_tokenizer(), grammar, log_level=0)  # a warning would lie in the log without a head


@functools.cache
def _tokenizer() -> Any:
    return _library().LLTokenizer("byte")


def _walk(kind: str, matcher: Any, likes: bytes, began: float) -> None:
    """Take steps, by the bytes that are liked most."""
    for _ in range(_STEPS):
        if time.process_time() - began > COMPILE_SECONDS:
            raise InvalidArgument(
                f"guided decoding ({kind}): it takes more than {COMPILE_SECONDS} s to compile; make it simpler"
            )
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            if matcher.get_error().startswith("NoExtension"):  # nothing keeps to it: no harm
                return
            raise InvalidArgument(f"guided decoding ({kind}): {matcher.get_error().splitlines()[0][:500]}")
        chosen = next((byte for byte in likes if mask[byte // 8] >> (byte % 8) & 1), None)
        if chosen is None:
            chosen = max((byte for byte in range(256) if mask[byte // 8] >> (byte % 8) & 1), default=None)
        if chosen is None:
            return
        matcher.consume_token(chosen)


def _written(kind: str, what: Any, gbnf: bool, space: str | None = None) -> str:
    if kind == "grammar":
        if what.startswith(LARK):
            return str(what)
        return f"{LARK} {{}}\n{to_lark(what) if gbnf and not _is_lark(what) else what}"
    if kind == "json":
        rule = f"%json {_schema(what, space)}"
    elif kind == "regex":
        rule = f"/{_library().regex_to_lark(what)}/"
    else:
        # A terminal: as ways of a rule, more than 2,000 of them are too many at once for the parser.
        return f"{LARK} {{}}\nstart: CHOICE\nCHOICE: {' | '.join(map(json.dumps, what))}"
    return f"{LARK} {{}}\nstart: {rule}"


def _is_lark(text: str) -> bool:
    """Tell whether a grammar without a first line is in Lark's form: its rules have another sign than GBNF's."""
    return "::=" not in text and _START.search(text) is not None


def _schema(what: Any, space: str | None) -> str:
    """Write it on one line: in a text of a client's own there could be more rules behind it."""
    return json.dumps(tight(_with_ends(_read_schema(what)), space))


def _with_ends(part: Any) -> Any:
    """Return a schema whose integers have at most 15 digits, unless they are bounded: small models write on and on."""
    if isinstance(part, list):
        return list(map(_with_ends, part))
    if not isinstance(part, dict):
        return part
    made = {name: inner if name in _VALUES else _with_ends(inner) for name, inner in part.items()}
    if made.get("type") == "string" and "pattern" not in made and (moment := _MOMENTS.get(str(made.get("format")))):
        made["pattern"] = moment
        del made["format"]
    if made.get("type") == "integer" and _LIMITS.isdisjoint(made):
        made |= {"minimum": -_LARGEST, "maximum": _LARGEST}
    return made


def tight(schema: Any, space: str | None = None) -> Any:
    """Return the schema with llguidance told what white space an answer may have: none, unless the client says so.

    A small model fills white space that is allowed without end, and never says the rest.
    """
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        return schema
    given = schema.get(OPTIONS)
    form = {"whitespace_flexible": False} if space is None else {"whitespace_pattern": space}
    return {**schema, OPTIONS: {**form, **(given if isinstance(given, dict) else {})}}


def _read_schema(what: Any) -> Any:
    try:
        return json.loads(what) if isinstance(what, str) else what
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"guided decoding (json): the schema is no JSON: {str(error)[:200]}") from error


def _check_text(kind: str, what: Any) -> None:
    if not isinstance(what, str):
        raise InvalidArgument(f"guided decoding ({kind}): expected a text, got {type(what).__name__}")
    size = len(what.encode(errors="replace"))
    if size > MOST_TEXT:
        raise InvalidArgument(f"guided decoding ({kind}): {size} bytes, and {MOST_TEXT} are the most")
    if _levels(kind, what) > MOST_LEVELS:
        raise InvalidArgument(f"guided decoding ({kind}): more than {MOST_LEVELS} parentheses within each other")


def _levels(kind: str, text: str) -> int:
    """Return how deep parentheses are within each other, but for those that are characters of the answer."""
    deepest = level = 0
    for mark in _marks(kind, text):
        level = level + 1 if mark in "([{" else max(0, level - 1)
        deepest = max(deepest, level)
    return deepest


def _marks(kind: str, text: str) -> Iterator[str]:
    """Yield the marks; of a grammar those of its regular expressions, too.

    GBNF has its own reader, which counts exactly.
    """
    if kind == "regex":
        yield from (piece for piece in _REGEX_PIECES.findall(text) if piece in "()")
    elif text.startswith(LARK):
        for piece in _LARK_PIECES.findall(text):
            if len(piece) == 1:
                yield piece
            elif piece[0] == "/" and piece[1] != "/":
                yield from _marks("regex", piece[1:-1])


def _check_choices(what: Any) -> None:
    if not isinstance(what, list | tuple) or not all(isinstance(choice, str) for choice in what) or not what:
        raise InvalidArgument("guided decoding (choice): expected a list of texts")
    if len(what) > MOST_CHOICES:
        raise InvalidArgument(f"guided decoding (choice): {len(what)} choices, and {MOST_CHOICES} are the most")
    size = sum(len(choice.encode(errors="replace")) for choice in what)
    if size > MOST_SCHEMA:
        raise InvalidArgument(f"guided decoding (choice): {size} bytes in all, and {MOST_SCHEMA} are the most")


def _check_schema(what: Any) -> None:
    """Check size, depth and numbers, by looking at each part once."""
    if isinstance(what, str) and len(what) > MOST_SCHEMA:
        raise InvalidArgument(f"guided decoding (json): a schema of {len(what)} bytes, and {MOST_SCHEMA} are the most")
    waiting = [(_read_schema(what), 1)]
    references = 0
    while waiting:
        part, level = waiting.pop()
        if level > MOST_LEVELS:
            raise InvalidArgument(f"guided decoding (json): the schema is more than {MOST_LEVELS} levels deep")
        if isinstance(part, dict):
            references += "$ref" in part
            _check_counts(part)
            waiting += [(inner, level + 1) for inner in part.values()]
        elif isinstance(part, list):
            waiting += [(inner, level + 1) for inner in part]
        elif isinstance(part, str) and len(part) > MOST_TEXT:
            raise InvalidArgument(f"guided decoding (json): a text of {len(part)} characters in the schema")
    if references > MOST_REFERENCES:
        raise InvalidArgument(f"guided decoding (json): {references} $refs, and {MOST_REFERENCES} are the most")


def _check_counts(part: dict[str, Any]) -> None:
    for name, most in _COUNTS.items():
        value = part.get(name)
        if isinstance(value, int | float) and value > most:
            raise InvalidArgument(f"guided decoding (json): {name} is over {most}; make it smaller")


def _short(wanted: dict[str, Any]) -> str:
    return ", ".join(sorted(map(str, wanted)))[:200]


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        hint = install_hint("llamacpp")
        raise InvalidArgument(f"guided decoding with this engine needs llguidance ({error}): {hint}") from error
    return llguidance
