"""Whatever the client's pace, it gets each text once and in order: a single token goes another way than several."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.frontend.responses.event_readers import WHO, Spoken

from dynamo.frontend.responses.extra_events import count_each
from dynamo.frontend.responses.response import ResponseOptions, SseResponse
from dynamo.frontend.responses.stream import BatchWriter, PlainWire, ResponseStream

STEPS = st.lists(
    st.sampled_from(("first speaks", "second speaks", "batch ends", "stops reading", "reads", "a turn passes")),
    min_size=20,
    max_size=60,
)


class Reader(PlainWire):
    """A client that has room for writes or not; `send` waits until it reads."""

    def __init__(self) -> None:
        super().__init__(None)
        self.room, self.data = True, bytearray()
        self._reads = asyncio.Event()

    def writer(self, send: Any) -> Callable[..., bool]:
        return self.write

    async def send(self, message: dict[str, Any]) -> None:
        if not self.room:
            self._reads.clear()
            await self._reads.wait()
        self.data += message.get("body", b"")

    def write(self, data: bytes, last: bool = False) -> bool:
        if self.room:
            self.data += data
        return self.room

    def stop(self) -> None:
        self.room = False

    def read(self) -> None:
        self.room = True
        self._reads.set()


class Conversation:
    """Two choices that speak to one client."""

    def __init__(self, counts: bool) -> None:
        self.reader, self._after = Reader(), list[Callable[[], None]]()
        batch = BatchWriter(self._after.append, lambda: 0.0)
        self.output = ResponseStream(self.reader.send, self.reader, stall_seconds=5.0)
        options = ResponseOptions(chat=True, choices=2, include_usage=counts, counts=counts)
        meter: Any = None
        self._answer = SseResponse(WHO, options, self.output, batch, headers=[], meter=meter, first_token=lambda: None)
        self.choices: list[Any] = [Spoken("stop"), Spoken("stop")]
        self.choices[1].index = 1
        self._answer.choices = self.choices
        if counts:
            count_each(self.output, self._answer)
        self.spoken = ["", ""]

    def speak(self, index: int) -> None:
        choice = self.choices[index]
        choice.tokens += 1
        text = f"<{index} {choice.tokens}>"
        self.spoken[index] += text
        self._answer.text(choice, text)

    def end_batch(self) -> None:
        while self._after:
            self._after.pop()()

    async def finish(self) -> None:
        self.reader.read()
        for choice in self.choices:
            self._answer.finished(choice)
        for _ in range(20):
            self.end_batch()
            await asyncio.sleep(0)

    def heard(self) -> list[str]:
        """Return the texts of both choices."""
        texts = ["", ""]
        for event in self.reader.data.decode().removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]:
            chunk = msgspec.json.decode(event.removeprefix("data: "))
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        return texts


async def follow(steps: list[str], counts: bool) -> None:
    talk = Conversation(counts)
    actions: dict[str, Callable[[], None]] = {
        "first speaks": lambda: talk.speak(0), "second speaks": lambda: talk.speak(1), "batch ends": talk.end_batch,
        "stops reading": talk.reader.stop, "reads": talk.reader.read,
    }  # fmt: skip
    for step in steps:
        if step in actions:
            actions[step]()
        else:
            await asyncio.sleep(0)
    await talk.finish()
    assert talk.heard() == talk.spoken
    assert talk.reader.data.endswith(b"data: [DONE]\n\n")
    assert b'"usage":null' not in talk.reader.data


@given(STEPS, st.booleans())
def test_each_text_comes_once_and_in_order(steps: list[str], counts: bool) -> None:
    """Also where the client stops to read in the middle, and with the usage in each chunk."""
    asyncio.run(follow(steps, counts))


async def test_nothing_is_written_after_the_client_has_left() -> None:
    """A token that was put aside for the next flush goes with the rest."""
    talk = Conversation(counts=False)
    for _ in range(3):
        talk.speak(0)
        talk.end_batch()
    written = bytes(talk.reader.data)
    assert b"<0 3>" in written
    talk.speak(0)
    await talk.output.close()
    talk.end_batch()
    assert bytes(talk.reader.data) == written
