"""Asking the entries of a batch: so many at once, and written as they end or in the order of the input."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from dynamo.cli.asgi_client import Client, RequestError
from dynamo.cli.batch import output_lines
from dynamo.cli.batch.input_lines import Asked, Bad, Entry, Prompt
from dynamo.cli.batch.output_lines import Outcome
from dynamo.cli.conversation import Conversation
from dynamo.runtime.process.backoff import Backoff

AHEAD: Final = 16
"""Entries per place that may wait for an earlier one, where the order is kept."""
BUSY: Final = frozenset({429, 503, 529})
"""Answers after which it is worth asking again."""
TRIES: Final = 8
BACKOFF: Final = Backoff(0.25, 16.0)
_CHAT: Final = "/v1/chat/completions"


class Asker:
    """Asks a frontend one entry at a time; never raises for what belongs to one entry."""

    def __init__(
        self, client: Client, model: str, template: dict[str, Any], *, ignore_eos: bool = False,
        pause: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    ) -> None:  # fmt: skip
        self._client, self._model, self._template, self._ignore_eos = client, model, template, ignore_eos
        self._pause = pause
        self._counts = True
        """The model has a tokenizer here."""

    async def answer(self, entry: Entry) -> Outcome:
        try:
            if isinstance(entry, Bad):
                return output_lines.of_bad(entry)
            if isinstance(entry, Asked):
                body = {"model": self._model, **entry.body}
                body.pop("stream", None)  # an answer is one line
                body.pop("stream_options", None)
                return output_lines.of_request(entry, await self._ask(entry.url, body))
            return await self._prompt(entry)
        except RequestError as error:
            return output_lines.of_failure(entry, error)

    async def _prompt(self, entry: Prompt) -> Outcome:
        talk = Conversation(self._model, self._template, self._ignore_eos)
        body = {**talk.ask(entry.text), "stream": False}
        began = time.monotonic()
        answer = await self._ask(_CHAT, body)
        elapsed = round((time.monotonic() - began) * 1000)
        return output_lines.of_prompt(
            entry.number, entry.text, answer, await self._count(body["model"], entry.text), elapsed
        )

    async def _count(self, model: str, text: str) -> int:
        """Return the tokens of the bare text, as NVIDIA Dynamo counts them; 0 where the model has no tokenizer."""
        if not self._counts:
            return 0
        try:
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            return int((await self._client.post("/tokenize", body))["count"])
        except RequestError as error:
            self._counts = error.code != "unsupported_value"
            return 0

    async def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        for attempt in itertools.count(1):
            try:
                answer: dict[str, Any] = await self._client.post(path, body)
                return answer
            except RequestError as error:
                if error.status not in BUSY or attempt == TRIES:
                    raise
                await self._pause(BACKOFF.delay(attempt))
        raise AssertionError("the count has no end")


class Sequence:
    """Order of the output: everything may be written now, or only what follows what was written. Pure."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._next = 0
        self._held: dict[int, Outcome] = {}

    def add(self, place: int, outcome: Outcome) -> list[Outcome]:
        """Add the outcome of the entry at `place`, which counts from 0 in the order in which entries were taken."""
        if not self._ordered:
            return [outcome]
        self._held[place] = outcome
        free = []
        while self._next in self._held:
            free.append(self._held.pop(self._next))
            self._next += 1
        return free


async def ask_all(
    entries: Iterable[Entry],
    answer: Callable[[Entry], Awaitable[Outcome]],
    write: Callable[[Outcome], None],
    *,
    concurrency: int,
    ordered: bool,
) -> None:
    """Answer all `entries`, `concurrency` at once; `write` gets each outcome once, in order where `ordered`."""
    places: Iterator[tuple[int, Entry]] = enumerate(entries)
    sequence = Sequence(ordered)
    room = asyncio.Semaphore(concurrency * AHEAD)

    async def work() -> None:
        while True:
            await room.acquire()
            taken = next(places, None)
            if taken is None:
                room.release()
                return
            place, entry = taken
            for outcome in sequence.add(place, await answer(entry)):
                write(outcome)
                room.release()
            await asyncio.sleep(0)  # lines that need no waiting must not keep the loop from the others

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(concurrency):
                group.create_task(work(), name=f"batch {number}")
    except* Exception as several:
        raise several.exceptions[0] from None
