"""Single attacks by name: what was found once, as it was found, so that it is tried again for ever. `ALL`, `fire`.

`make fuzz ARGS="--attack NAME"` does one, `--attack all` each, `--hundred` a hundred of each at once. Those of files,
templates, parsers and pipelines, which need no site, are the first cases of their targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import click
from tests.fuzz.firing import Shot, post
from tests.fuzz.judging import HUNDRED, Seen
from tests.fuzz.lane import Lane, shot_act
from tests.fuzz.site import GEMMA, LLAMA, MODEL, TOOLS, VECTORS
from tests.fuzz.targets import attack_shots as shots
from tests.fuzz.targets import rawhttp
from tests.fuzz.targets.attack_shots import CHAT, LARGE, TEXT

_TOOL: Final = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_WRONG: Final[tuple[Any, ...]] = ([1], {}, [], -5, "5", "a", 1e308, 10**9, True)
_FULL: Final = frozenset({429, 503, 504})
"""What a flood may be answered."""


@dataclass(frozen=True)
class Attack:
    """One of them."""

    name: str
    finding: str
    says: str
    shots: Callable[[], list[Shot]]
    models: Sequence[str] = ()
    flags: tuple[str, ...] = ()
    statuses: frozenset[int] | None = None
    """How each shot may be answered; None: in any way that is meant."""
    crowd: int = 100
    """How many make a hundred: an attack that is a crowd by itself needs fewer."""


_ALL: Final = (
    Attack(
        "mistral-spaces",
        "H1",
        "an answer of 2,000 spaces behind [TOOL_CALLS]name",
        lambda: [
            shots.chat(f"[TOOL_CALLS]name{' ' * n}x", TOOLS, tools=[_TOOL], max_tokens=5000) for n in (2000, 4000)
        ],
        (TOOLS,),
    ),
    Attack(
        "tool-filler",
        "M3",
        "an answer of white space, markers and brackets, streamed",
        lambda: [
            shots.chat(filler * (4_000 // len(filler)) + "x", TOOLS, tools=[_TOOL], stream=True, max_tokens=5_000)
            for filler in (" ", "\n", "[TOOL_CALLS]", "[TOOL_CALLS]a{", "<think>", "[", "{")
        ],
        (TOOLS,),
    ),
    Attack(
        "model-names",
        "H2",
        "a model's name of 4 MB, on every route",
        shots.model_names,
        statuses=frozenset({400, 404, 413}),
    ),
    Attack(
        "surrogates",
        "H3",
        "half a surrogate pair, deep down in 4 MB",
        lambda: [
            shots.raw(TEXT, shots.surrogates(depth, 3_500_000 // (2 * depth + 220))) for depth in (20, 60, 400, 900)
        ],
        statuses=frozenset({400, 413}),
    ),
    Attack(
        "answers-of-prompts",
        "H4",
        "16 prompts of 100 KB, 128 answers each",
        lambda: [shots.text([f"{n} " + "x" * 100_000 for n in range(16)], n=128)],
    ),
    Attack(
        "token-ids-times-n", "H4", "a prompt of 100,000 ids, 128 answers", lambda: [shots.text([65] * 100_000, n=128)]
    ),
    Attack(
        "tokenize",
        "H7",
        "4 MB to /tokenize, as a prompt and as messages",
        lambda: (
            [
                post("/tokenize", {"model": model, "prompt": "a b " * (LARGE // 4), "return_token_strs": True})
                for model in (MODEL, GEMMA)
            ]
            + [
                shots.raw(
                    "/tokenize",
                    b'{"model":"%s","messages":%s}' % (model, shots.repeated(b'{"role":"user","content":"a"}')),
                )
                for model in (b"m", b"g")
            ]
        ),
        (GEMMA,),
    ),
    Attack(
        "detokenize",
        "H7",
        "1.3 million ids to /detokenize",
        lambda: [
            shots.raw("/detokenize", b'{"model":"%s","tokens":%s}' % (model, shots.repeated(b"65")))
            for model in (b"m", b"g")
        ],
        (GEMMA,),
    ),
    Attack(
        "embeddings",
        "H7",
        "4 MB to /v1/embeddings: one text, many texts, many ids",
        lambda: [
            shots.raw("/v1/embeddings", b'{"model":"e","input":%s}' % value)
            for value in (
                b'"' + b"a" * LARGE + b'"',
                shots.repeated(b'"a"'),
                shots.repeated(b"65"),
                shots.repeated(b"[65]"),
            )
        ],
        (VECTORS,),
    ),
    Attack(
        "metadata",
        "M1",
        "4 MB of [], in metadata",
        lambda: shots.json("metadata", b'{"a":' + shots.repeated(b"[]") + b"}"),
    ),
    Attack("unknown-keys", "M1", "300,000 unknown keys", lambda: [shots.raw(CHAT, shots.keys(b'"k%x":1'))]),
    Attack(
        "tools",
        "M1",
        "4 MB of tools, one of which must be called",
        lambda: shots.json(
            "tools",
            shots.repeated(b'{"type":"function","function":{"name":"f","parameters":{}}}'),
            more=b',"tool_choice":"required"',
        ),
    ),
    Attack(
        "one-large-tool",
        "M1",
        "a tool whose parameters have 4 MB",
        lambda: shots.json(
            "tools",
            b'[{"type":"function","function":{"name":"f","parameters":{"properties":'
            + shots.keys(b'"p%x":{"type":"string"}')
            + b"}}}]",
            more=b',"tool_choice":"required"',
        ),
    ),
    Attack("call-arguments", "M1", "4 MB of JSON in a call's arguments", shots.calls),
    Attack(
        "messages",
        "M1",
        "130,000 messages",
        lambda: [
            shots.raw(
                CHAT,
                b'{"model":"%s","max_tokens":2,"messages":%s}'
                % (model, shots.repeated(b'{"role":"user","content":"a"}')),
            )
            for model in (b"m", b"g")
        ],
        (GEMMA,),
    ),
    Attack(
        "parts",
        "M1",
        "130,000 parts of a message",
        lambda: [
            shots.raw(
                CHAT,
                b'{"model":"m","max_tokens":2,"messages":[{"role":'
                b'"user","content":%s}]}' % shots.repeated(b'{"type":"text","text":"a"}'),
            )
        ],
    ),
    Attack(
        "logit-bias", "M1", "280,000 keys in logit_bias", lambda: shots.json("logit_bias", shots.keys(b'"%d":1'), TEXT)
    ),
    Attack(
        "stop-ids", "M1", "1.9 million stop_token_ids", lambda: shots.json("stop_token_ids", shots.repeated(b"5"), TEXT)
    ),
    Attack(
        "stop-ids-times-n",
        "M1",
        "350,000 stop_token_ids, 128 answers",
        lambda: shots.json("stop_token_ids", shots.repeated(b"5", 700_000), TEXT, b',"n":128'),
    ),
    Attack("stop-strings", "M1", "64 stop strings of 60 KB", lambda: [shots.text("a", stop=["a" * 60_000] * 64)]),
    Attack("prompts", "M1", "2,048 prompts", lambda: [shots.text(["a"] * 2048), shots.text(["a" * 1900] * 2048)]),
    Attack(
        "nesting",
        "M1",
        "lists and objects in each other, deep and wide",
        lambda: [
            shot
            for n in (65, 1000, 1_900_000)
            for shot in shots.json("metadata", b'{"a":' + b"[" * n + b"]" * n + b"}")
        ],
    ),
    Attack(
        "choices",
        "M2",
        "100,000 guided choices",
        shots.constrained(MODEL, LLAMA, guided_choice=[f"c{n}" for n in range(100_000)]),
        (LLAMA,),
    ),
    Attack(
        "schema-lengths",
        "M2",
        "a schema with minItems of ten million",
        shots.constrained(MODEL, LLAMA, guided_json={"type": "array", "items": {"type": "integer"}, "minItems": 10**7}),
        (LLAMA,),
    ),
    Attack(
        "schema-size",
        "M2",
        "a schema of 3 MB",
        lambda: [
            shots.raw(
                CHAT,
                b'{"model":"%s","max_tokens":4,"messages":[{"role":"user","content":"a"}],"response_format":{"type":'
                b'"json_schema","json_schema":{"name":"a","schema":{"type":"object","properties":%s}}}}'
                % (model, shots.keys(b'"p%x":{"type":"string"}', 3_000_000)),
            )
            for model in (b"m", b"l")
        ],
        (LLAMA,),
    ),
    Attack(
        "regex",
        "M2",
        "a regular expression that explodes",
        shots.constrained(MODEL, LLAMA, guided_regex="((a{1,1000}){1,1000}){1,1000}b"),
        (LLAMA,),
    ),
    Attack(
        "grammar-depth",
        "C2",
        "a grammar with 50,000 parentheses in each other",
        shots.constrained(MODEL, LLAMA, guided_grammar="root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000),
        (LLAMA,),
    ),
    Attack(
        "grammar-braces",
        "C2",
        "a grammar of 30,000 rules that name each other",
        shots.constrained(
            MODEL,
            LLAMA,
            guided_grammar="root ::= r1\n"
            + "".join(f"r{n} ::= r{n + 1}\n" for n in range(1, 30_000))
            + 'r30000 ::= "a"',
        ),
        (LLAMA,),
    ),
    Attack(
        "slow-bodies",
        "M4",
        "20 clients of one machine that send a byte now and then, where 30 connections are taken",
        shots.slow_bodies,
        flags=("--max-connections", "30"),
        crowd=1,
    ),
    Attack("forged-lines", "M5", "line breaks and escape codes where logs say what was asked", shots.forging),
    Attack(
        "upgrade",
        "M7",
        "an offer of h2c with a body, as Java's client makes it",
        lambda: [
            Shot(
                "h2c",
                [
                    rawhttp.good(
                        rawhttp.BODY,
                        b"connection: Upgrade, HTTP2-Settings, close",
                        b"upgrade: h2c",
                        b"http2-settings: AAEAAEAAAAIAAAAB",
                    )
                ],
            )
        ],
        statuses=frozenset({200}),
    ),
    Attack(
        "timeouts",
        "M8",
        "a time limit of 400 digits",
        lambda: [
            post(TEXT, {"model": MODEL, "prompt": "a", "max_tokens": 2}, x_request_timeout_ms=value)
            for value in ("000000000001" + "9" * 400, "9" * 20, "9" * 4000, "1e5", "\u0661", "-1", "0")
        ],
        statuses=frozenset({200, 400}),
    ),
    Attack(
        "unchecked-fields",
        "M8",
        "max_completion_tokens of any type, prompt_logprobs of a milliard",
        lambda: (
            [shots.text("a", max_completion_tokens=value) for value in _WRONG]
            + [shots.chat("a", prompt_logprobs=value) for value in _WRONG]
        ),
    ),
    Attack("one-byte-chunks", "", "600,000 chunks of one byte", shots.chunked),
    Attack(
        "hosts",
        "L4",
        "no Host, and two of them",
        lambda: [
            Shot("host", [b"GET /live HTTP/1.1\r\n" + hosts + b"connection: close\r\n\r\n"])
            for hosts in (b"", b"host: a\r\nhost: b\r\n")
        ],
        statuses=frozenset({400}),
    ),
    # Last: where it isn't refused, nobody is served any more.
    Attack(
        "thresholds",
        "M6",
        "a sidecar's request that sets thresholds",
        lambda: [
            shots.busy(x_forwarded_proto="http"),
            shots.busy(x_envoy_attempt_count="1"),
            shots.busy(x_request_id="a"),
            shots.busy(via="1.1 a"),
        ],
        statuses=frozenset({403, 404, 405}),
    ),
)
ALL: Final = {attack.name: attack for attack in _ALL}


def named(name: str) -> Attack:
    """The attack of that name, or a usage error with the nearest one."""
    if name in ALL:
        return ALL[name]
    near = get_close_matches(name, ALL, n=1)
    raise click.UsageError(f"there is no attack {name!r}; {f'did you mean {near[0]}' if near else '--attack list'}?")


async def fire(attack: Attack, lane: Lane, hundred: bool = False) -> list[str]:
    """Do it, one shot after the other, or a hundred of all of them at once; return what was broken."""
    shots = attack.shots()
    if hundred:
        times = max(1, attack.crowd // len(shots))
        act = shot_act(lane.site.port, shots, times)
        replay = f"--attack {attack.name} --hundred"
        return await lane.do(
            "attack", f"{attack.name}, a hundred", act, replay, bars=HUNDRED, expected=_refused(attack, crowd=True)
        )
    together = attack.crowd == 1
    broken: list[str] = []
    for group in [shots] if together else [[shot] for shot in shots]:
        act = shot_act(lane.site.port, group, 1)
        broken += await lane.do(
            "attack", attack.name, act, f"--attack {attack.name}", expected=_refused(attack, crowd=False)
        )
    return broken


def _refused(attack: Attack, *, crowd: bool) -> Callable[[Seen], list[str]]:
    def check(seen: Seen) -> list[str]:
        if attack.statuses is None:
            return []
        fine = attack.statuses | (_FULL if crowd else frozenset())
        wrong = sorted({answer.status for answer in seen.answers} - fine)
        return [f"answered {wrong}, expected one of {sorted(fine)}"] if wrong else []

    return check
