"""Target `wire`: what a pod of the namespace could publish on NATS: requests, chunks, controls, answers, events.

Subjects are those that are in use, heard while others' streams run. Frames of a live worker are left alone: whoever
may publish in a namespace may answer for its workers (SECURITY.md). What a message holds is tried here, not how many
fit on a NATS: whoever floods that of a namespace slows that namespace alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.fuzz.judging import Answer
from tests.fuzz.site import MODEL, Site
from tests.fuzz.targets.rawhttp import mutated

from dynamo.runtime.request_plane.wire import Chunk, Control, Item, Rejection, Request, StepFrame, encoder

NAME: Final = "wire"
MODELS: Final = (MODEL,)
_LIMIT: Final = 1_000_000
"""Bytes of a message: the server's own limit."""
_MOST_BYTES: Final = 32_000_000
_MOST_MESSAGES: Final = 2_000
"""Of one case: as much as a worker reads in a tenth of a second."""
_BOMBS: Final = (
    b"",
    b"\xc1",
    b"\x91" * 100_000 + b"\xc0",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\x81" * 50_000 + b"\xc0",
    b"\xd6\xff\xff\xff\xff\xff",
    b"\xdc\xff\xff" + b"\x90" * 65_535,
    b"\xde\xff\xff" + b"\xa0\xc0" * 65_535,
    b"\xca\x7f\xc0\x00\x00",
    b"\xa2\xff\xfe",
    b"\x80" * 500_000,
    b"\xc0" * 900_000,
)


@dataclass
class Heard:
    """Subjects in use, and the last messages on them."""

    samples: dict[str, list[bytes]] = field(default_factory=dict)

    def take(self, message: Msg) -> None:
        kept = self.samples.setdefault(message.subject, [])
        if len(kept) < 5 and len(self.samples) < 500:
            kept.append(message.data)

    def subjects(self, part: str) -> list[str]:
        """Those that hold this, as in `.req`; a made-up one where none was heard."""
        return sorted(subject for subject in self.samples if part in subject) or [f"dyn.test.nobody{part}"]

    def all(self, part: str) -> list[bytes]:
        return [data for subject in self.subjects(part) for data in self.samples.get(subject, [])] or [b""]


Making = Callable[[Random, Heard], list[tuple[str, bytes]]]
"""What is published: subjects and messages."""


@dataclass(frozen=True)
class Volley:
    """One case: made when the subjects are known."""

    seed: int
    make: Making


class Wire:
    """The target: it remembers what it has heard, while the processes are the same."""

    NAME = NAME
    MODELS = MODELS

    def __init__(self) -> None:
        self._heard, self._of = Heard(), ""

    def case(self, random: Random) -> tuple[str, Volley]:
        """Messages of one sort."""
        name = random.choice([*_SORTS])
        return name, Volley(random.getrandbits(32), _SORTS[name])

    async def act(self, site: Site, volley: Volley) -> Sequence[Answer]:
        """Listen until a request has been heard, publish, and let it be read."""
        client: Client = await nats.connect(f"nats://127.0.0.1:{site.stack.nats_port}", max_reconnect_attempts=1)
        try:
            if self._of != (of := f"{site.port} {[part.pid for part in site.parts]}"):
                self._heard, self._of = Heard(), of
                await client.subscribe("dyn.>", cb=_taking(self._heard))
                await _until_asked(self._heard)
            for subject, data in _bounded(volley.make(Random(volley.seed), self._heard)):
                await client.publish(subject, data)
            await client.flush(timeout=30)
            await asyncio.sleep(0.2)
        finally:
            await client.close()
        return []


def _bounded(messages: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the first messages, each as long as the server takes it, up to what one case may send."""
    left = _MOST_BYTES
    for subject, data in messages[:_MOST_MESSAGES]:
        left -= min(len(data), _LIMIT)
        if left < 0:
            return
        yield subject, data[:_LIMIT]


def _taking(heard: Heard) -> Any:
    async def take(message: Msg) -> None:
        heard.take(message)

    return take


async def _until_asked(heard: Heard) -> None:
    """Others' streams begin every few seconds: until one has, what is heard are frames."""
    for _ in range(600):
        if any(subject.endswith(".req") for subject in heard.samples):
            return
        await asyncio.sleep(0.05)


def _any_id(random: Random) -> int:
    return random.choice((0, 1, 2**53 - 1, 2**53, 2**63, 2**64 - 1, random.getrandbits(53)))


def _deep(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


def _payload(random: Random) -> msgspec.Raw:
    kinds = (
        lambda: _deep(random.choice((10, 500, 100_000))),
        lambda: random.choice(_BOMBS[1:]),
        lambda: encoder.encode(
            {"token_ids": [1] * random.choice((1, 100_000)), "stop_conditions": {"max_tokens": 2**40}}
        ),
        lambda: encoder.encode({"token_ids": [-1, 2**60, 1.5, None]}),
        lambda: encoder.encode({"token_ids": "a" * 500_000}),
        lambda: encoder.encode([{}] * 100_000),
        lambda: encoder.encode({f"k{n}": n for n in range(50_000)}),
        lambda: encoder.encode({"token_ids": [1], "sampling_options": {"guided_decoding": {"json": "[" * 100_000}}}),
    )
    return msgspec.Raw(random.choice(kinds)())


def _requests(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    text = random.choice(("r", "", "r" * 100_000, "a\nb\x1b[31m", "\x00"))
    metadata = random.choice(({}, {"a": "b"}, {f"k{n}": "v" for n in range(20_000)}, {"traceparent": "z" * 100_000}))
    deadline = random.choice((0, 1, -1, 2**62, 5_000))
    return [
        (
            random.choice(heard.subjects(".req")),
            encoder.encode(
                Request(
                    random.choice((1, 1, 1, 0, 2, -1)),
                    _any_id(random),
                    _any_id(random),
                    text,
                    deadline,
                    metadata,
                    _payload(random),
                )
            ),
        )
        for _ in range(random.choice((1, 20, 500) if len(text) < 10 else (1, 5)))
    ]


def _mutations(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    part = random.choice((".req", ".ctl", ".kv.", ".router.", ".r."))
    samples, subjects = heard.all(part), heard.subjects(part)
    return [
        (random.choice(subjects), mutated(random, random.choice(samples), random.choice((1, 3, 10))))
        for _ in range(200)
    ]


def _bombs(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    subject = random.choice([*heard.samples] or ["dyn.test"])
    if ".in." in subject:  # a frame that can't be read is only counted; others' frames stay whole
        subject = subject.rsplit(".", 2)[0] + ".s"
    return [
        (subject, random.choice(_BOMBS)) for _ in range(random.choice((1, 20, 1000)) if random.random() < 0.7 else 5)
    ]


def _unfinished(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    """Parts of requests that never become whole, of clients that there aren't."""
    subject = random.choice(heard.subjects(".req"))
    count, size = random.choice(((100, 100_000), (20_000, 10), (20_000, 500), (50, 900_000)))
    data = random.randbytes(size)
    index, parts = random.choice(((0, 2), (1, 2), (0, 2**31), (2**63 - 1, 2**63 - 1), (5, 3), (-1, 2), (0, 0)))
    same = random.random() < 0.2
    return [
        (subject, encoder.encode(Chunk(7 if same else random.getrandbits(53), number, index, parts, data)))
        for number in range(count)
    ]


def _controls(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    subject = random.choice([name.removesuffix("req") + "ctl" for name in heard.subjects(".req")])
    bodies = (
        lambda: b"\xc0",
        lambda: _deep(100_000),
        lambda: encoder.encode([1] * 200_000),
        lambda: encoder.encode("a" * 500_000),
        lambda: encoder.encode({"digest": "../../etc/passwd", "offset": -1, "length": 2**60}),
        lambda: encoder.encode({"digest": 5}),
        lambda: encoder.encode({"digest": "0" * 64, "offset": 10**18, "length": 2**62}),
        lambda: random.choice(_BOMBS[1:]),
    )
    names = ("ping", "cancel", "file", "", "a" * 100_000, "clear_kv_blocks", "a\nb", "__class__", "load", "kv_snapshot")
    return [
        (
            subject,
            encoder.encode(
                Control(
                    random.choice((1, 2)), _any_id(random), random.choice(names), msgspec.Raw(random.choice(bodies)())
                )
            ),
        )
        for _ in range(random.choice((1, 20, 300)))
    ]


def _frames(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    """Of workers that there aren't."""
    subject = random.choice(heard.subjects(".in.")).rsplit(".", 2)[0]
    subject += ".s"
    makers: tuple[Callable[[], Any], ...] = (
        lambda: StepFrame(1, _any_id(random), _any_id(random), [_any_id(random)] * random.choice((0, 1, 50_000)), []),
        lambda: StepFrame(
            1, random.getrandbits(53), 1, [], [Item(_any_id(random), "a", random.choice((0, 1, 2, 9)))] * 10_000
        ),
        lambda: StepFrame(random.choice((0, 2, -1)), random.getrandbits(53), 1, [], []),
        lambda: Rejection(_any_id(random), "full", "a" * 500_000),
    )
    return [(subject, encoder.encode(random.choice(makers)())) for _ in range(random.choice((1, 20, 300)))]


def _replies(random: Random, heard: Heard) -> list[tuple[str, bytes]]:
    prefix = random.choice(heard.subjects(".in.")).rsplit(".", 1)[0].removesuffix(".r")
    names = ("0", "-1", "9" * 400, "c99", "a", "1e9", "99999999999", "\u0661")
    data = random.choice(
        (encoder.encode(Rejection(1, "full", "a")), encoder.encode(Rejection(1, "x" * 100_000, "a\nb")), *_BOMBS)
    )
    return [(f"{prefix}.r.{random.choice(names)}", data) for _ in range(100)]


_SORTS: Final[dict[str, Making]] = {
    "requests": _requests,
    "mutated messages": _mutations,
    "bombs": _bombs,
    "unfinished chunks": _unfinished,
    "controls": _controls,
    "frames": _frames,
    "replies": _replies,
}
