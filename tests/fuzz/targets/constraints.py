"""Target `constraints`: grammars and schemas in every field that takes them, to the mocker and a real llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from tests.fuzz.firing import Shot, post
from tests.fuzz.site import LLAMA, MODEL
from tests.fuzz.targets import hostile

NAME: Final = "constraints"
MODELS: Final = (MODEL, LLAMA)
LARGEST: Final = 1_000_000
_ASKED: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
_COUNTS: Final = (1, 10, 199, 200, 201, 1_000, 20_000, 50_000, 200_000)


def _nested(random: Random, opener: str, inner: str, closer: str) -> str:
    count = min(random.choice(_COUNTS), LARGEST // (len(opener) + len(closer)))
    return opener * count + inner + closer * count


def grammar(random: Random) -> str:
    """GBNF, or almost."""
    count = random.choice(_COUNTS)
    some = min(count, 20_000)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: (
            "root ::= "
            + _nested(
                random,
                *random.choice(
                    (("(", '"a"', ")"), ("(", '"a"', ")*"), ("(", '"a"', "){2}"), ("( ", "", " | "), ("[", "a", "]"))
                ),
            )
        ),
        lambda: "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1}\n" for n in range(some)) + f'r{some} ::= "a"',
        lambda: "root ::= root",
        lambda: 'root ::= root "a" | "a"',
        lambda: "root ::= a\na ::= b\nb ::= a",
        lambda: f'root ::= "a"{{{count * 1000}}}',
        lambda: f'root ::= (("a"{{{some}}}){{{some}}}){{{some}}}',
        lambda: 'root ::= "' + "a" * min(count * 10, LARGEST) + '"',
        lambda: "root ::= [" + "a-z" * min(count, LARGEST // 3) + "]",
        lambda: "root ::= " + " | ".join(f'"c{n}"' for n in range(some)),
        lambda: 'root ::= "' + "\\x" * some,
        lambda: "root ::= [^",
        lambda: 'root ::= "\\U0010FFFF" [\\u0000-\\U0010FFFF]+',
        lambda: 'root ::= "a"' + "?" * some,
        lambda: 'root ::= "a"' + "*" * min(some, 2000),
        lambda: "# " + "c" * min(count, LARGEST),
        lambda: "a ::= 'b'",
        lambda: "",
        lambda: "\x00",
        lambda: "root ::= undefined",
        lambda: "%llguidance {}\nstart: " + _nested(random, "(", '"a"', ")"),
        lambda: "%llguidance {\nstart:",
        lambda: "root ::= <[1]> | !<[5]>",
        lambda: "%llguidance {}\nstart: %json {}",
        lambda: '%llguidance {}\nstart: @x\nx: "a"',
        lambda: "root::=" * some,
    )
    text = random.choice(kinds)()
    if random.random() < 0.2 and text:
        at = random.randrange(len(text))
        text = text[:at] + random.choice(('"', "(", ")", "[", "{", "\\", "::=", "\n", "é", "\x00")) + text[at + 1 :]
    return text


def regex(random: Random) -> str:
    """Regular expressions that explode, are deep, or are none."""
    count = random.choice(_COUNTS)
    kinds: tuple[Callable[[], str], ...] = (
        lambda: _nested(random, "(", "a", ")"),
        lambda: _nested(random, "(?:", "a", ")*"),
        lambda: _nested(random, "(", "a", "){1,9}"),
        lambda: "(a|b)*a" + "(a|b)" * min(count, 5_000),
        lambda: f"(a{{1,{count}}}){{1,{count}}}",
        lambda: "a?" * min(count, 5_000) + "a" * min(count, 5_000),
        lambda: "|".join(f"c{n}" for n in range(min(count, 20_000))),
        lambda: "[" + "a-z" * min(count, 20_000) + "]",
        lambda: "\\p{L}" * min(count, 2_000),
        lambda: "(?=a)b",
        lambda: "(?i)" + "k" * min(count, 20_000),
        lambda: "^$" * min(count, 20_000),
        lambda: ".*" * min(count, 2_000),
        lambda: "[",
        lambda: "\\x{110000}",
        lambda: "a{99999999999999999999}",
        lambda: "\\",
        lambda: "(?P<a>b)(?P=a)",
        lambda: "a/b\n/",
        lambda: ".{0,1000000}",
    )
    return random.choice(kinds)()


def choices(random: Random) -> list[str]:
    """Many, long, or alike."""
    count = min(random.choice(_COUNTS), LARGEST // 8)
    return random.choice(
        (
            [f"c{n}" for n in range(count)],
            ["a" * min(count * 5, LARGEST)],
            ["a" * n for n in range(1, min(count, 1_000))],
            ["a"] * count,
            ['"' * 10, "\\" * 10, "\n", "\x00", "é", "🙂", "]]>"],
            ["a" * 500 + str(n) for n in range(min(count, 2_000))],
        )
    )


def case(random: Random) -> tuple[str, list[Shot]]:
    """One constraint in one of the fields that take it, for one of both engines."""
    model = random.choice((MODEL, LLAMA, LLAMA))
    kind = random.choice(("grammar", "regex", "choice", "json", "format", "tools"))
    if kind in ("grammar", "regex", "choice"):
        made: dict[str, Callable[[Random], Any]] = {"grammar": grammar, "regex": regex, "choice": choices}
        field = {f"guided_{kind}": made[kind](random)}
        body: dict[str, Any] = {**_ASKED, "model": model}
        body |= {"nvext": field} if random.random() < 0.2 else field
        content = json.dumps(body).encode()
    else:
        content = _with_schema(
            kind, model, hostile.schema(random, LARGEST) if random.random() < 0.7 else hostile.nested(random, LARGEST)
        )
    name = f"{model} {kind} {content[90:170]!r}, {len(content)} bytes"
    return name, [post("/v1/chat/completions", content, name, x_request_timeout_ms="10000")]


def _with_schema(kind: str, model: str, schema: bytes) -> bytes:
    holes: dict[str, dict[str, Any]] = {
        "json": {"guided_json": "@@"},
        "format": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": "@@"}}},
        "tools": {
            "tools": [{"type": "function", "function": {"name": "f", "parameters": "@@"}}],
            "tool_choice": "required",
        },
    }
    return json.dumps({**_ASKED, "model": model, **holes[kind]}).encode().replace(b'"@@"', schema)
