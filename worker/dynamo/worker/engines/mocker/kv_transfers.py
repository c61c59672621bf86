"""How mockers hand prompts to each other: the shells around `engines/mocker/kv_transfer_state.py`, with timers and
streams.

`Giver` is the prefill side: it keeps what was computed, and simulates the transfer to who comes for it. `Taker` is the
decode side: its requests wait until their prompts are there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dynamo.llm.kv.image_blocks import cached_prompt
from dynamo.llm.protocols import DISAGGREGATED_PARAMS, PreprocessedRequest
from dynamo.runtime.errors import CannotConnect, DynamoException, EngineShutdown, InvalidArgument, StreamIncomplete
from dynamo.worker.engine import Abort, Fetch
from dynamo.worker.engine import Taker as Stream
from dynamo.worker.engines.mocker.arguments import MockArguments
from dynamo.worker.engines.mocker.kv_transfer_state import PARAMS, Coming, Handover, Kept, given, room_name
from dynamo.worker.engines.mocker.rank import MockRank, MockRequest
from dynamo.worker.engines.mocker.scheduler import Sequence

log = logging.getLogger(__name__)
PATIENCE: Final = 10.0
"""Seconds for which who comes waits for a room that nobody works on."""
Prompt = tuple[MockRank, Sequence[MockRequest]]


class Giver:
    """Keep computed prompts as a prefill engine, and send their blocks to decode engines."""

    def __init__(self, arguments: MockArguments) -> None:
        self._link, self._speedup = arguments.link, arguments.timing.speedup_ratio
        self._kept: Kept[Prompt, Stream] = Kept(arguments.handoff_session_timeout_ms / 1000, PATIENCE)
        self._giving: dict[Stream, tuple[asyncio.TimerHandle, Prompt]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._empty = asyncio.Event()
        self.address: Callable[[], str] = str
        self.bytes_per_token = 0

    def __len__(self) -> int:
        """Count prompts that are kept, or on their way."""
        return len(self._kept) + len(self._giving)

    async def all_taken(self) -> None:
        """Wait until there is none."""
        while len(self):
            self._empty.clear()
            await self._empty.wait()

    def begins(self, room: int) -> None:
        """Note that a prompt of that room is being computed."""
        self._kept.begins(room_name(room))

    def ends(self, room: int) -> None:
        """Note that it isn't any more; fine where it was computed."""
        stream = self._kept.ends(room_name(room))
        if stream is not None:
            stream.fail(StreamIncomplete("the prompt is not computed: its request ended"))

    def hand_out(self, rank: MockRank, sequence: Sequence[MockRequest]) -> dict[str, Any]:
        """Keep a computed prompt, and say how to come for it."""
        room = sequence.owner.room
        prompt = (rank, sequence)
        name, stream = self._kept.keep(prompt, time.monotonic(), "" if room is None else room_name(room))
        if stream is not None:
            self._send(prompt, stream)
        self._arm()
        made = Handover(
            remote_engine_id=self.address(), remote_request_id=name, remote_dp_rank=rank.number,
            num_tokens=sequence.length,
        )  # fmt: skip
        return {DISAGGREGATED_PARAMS: {PARAMS: msgspec.to_builtins(made)}}

    def give(self, name: str, stream: Stream) -> Abort:
        """Give a prompt to somebody who comes for it; raises `StreamIncomplete` where it isn't here."""
        prompt = self._kept.come(name, stream, time.monotonic())
        if prompt is None:
            self._arm()
        else:
            self._send(prompt, stream)
        return lambda: self._left(name, stream)

    def stop(self) -> None:
        """Fail everybody who waits or takes."""
        if self._timer is not None:
            self._timer.cancel()
        for timer, _ in self._giving.values():
            timer.cancel()
        for stream in [*self._giving, *self._kept.everybody()]:
            stream.fail(EngineShutdown())
        self._giving.clear()

    def forget(self) -> None:
        """Do the same, and let go of what is kept."""
        self.stop()
        for prompt in [*self._kept.expired(math.inf)[0]]:
            self._let_go(prompt)
        self._timer = None

    def _send(self, prompt: Prompt, stream: Stream) -> None:
        """Simulate the transfer."""
        _, sequence = prompt
        milliseconds = self._link.milliseconds(sequence.length, self.bytes_per_token)
        seconds = milliseconds / 1000 / self._speedup if self._speedup else 0.0
        about = Coming(num_tokens=sequence.length, cached_tokens=max(0, sequence.cached_tokens))
        self._giving[stream] = (asyncio.get_running_loop().call_later(seconds, self._sent, stream), prompt)
        stream.send(msgspec.to_builtins(about))

    def _sent(self, stream: Stream) -> None:
        _, prompt = self._giving.pop(stream)
        self._let_go(prompt)
        stream.finish()

    def _left(self, name: str, stream: Stream) -> None:
        """Forget who came and doesn't want it any more; nobody else will come."""
        self._kept.leaves(name, stream)
        if stream in self._giving:
            timer, prompt = self._giving.pop(stream)
            timer.cancel()
            self._let_go(prompt)

    def _let_go(self, prompt: Prompt) -> None:
        rank, sequence = prompt
        rank.release(sequence)
        if not len(self):
            self._empty.set()

    def _arm(self) -> None:
        """Look again when somebody's time is over."""
        deadline = self._kept.deadline
        if deadline is None or (self._timer is not None and self._due <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due = deadline
        self._timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), self._expire)

    def _expire(self) -> None:
        """Let go of what nobody came for, and of who came for nothing."""
        self._timer = None
        prompts, streams = self._kept.expired(time.monotonic())
        for prompt in prompts:
            log.warning("nobody came for a prompt of %d tokens: its blocks are free again", prompt[1].length)
            self._let_go(prompt)
        for stream in streams:
            stream.fail(StreamIncomplete("no request for this room has come"))
        self._arm()


class Taker:
    """Hold the requests of a decode engine until the blocks of their prompts have arrived."""

    def __init__(self) -> None:
        self.fetch: Fetch | None = None
        self._coming: dict[MockRequest, Abort] = {}

    def __len__(self) -> int:
        """Count requests whose prompts are on their way."""
        return len(self._coming)

    def take(self, request: MockRequest, wanted: PreprocessedRequest, rank: MockRank) -> None:
        """Queue a request when its prompt is here; raises `InvalidArgument`, `StreamIncomplete`, or `ValueError` for
        what isn't a token id."""
        address, name = _source(wanted)
        if self.fetch is None:
            raise InvalidArgument("this engine has nowhere to fetch prompts from")
        tokens, media = cached_prompt(wanted, rank.scheduler.limits.block_size)
        names, tail = rank.scheduler.cut(tokens, media)
        waiting = _Waiting(self, request, rank, (names, tail), len(tokens))
        waiting.media = rank.scheduler.touching_rest(media, names)
        self._coming[request] = self.fetch(address, name, waiting)
        rank.coming += 1

    def abort(self, request: MockRequest, rank: MockRank) -> None:
        """Give up a prompt that nobody wants any more; fine where it is here."""
        if (give_up := self.done(request, rank)) is not None:
            give_up()

    def done(self, request: MockRequest, rank: MockRank) -> Abort | None:
        """Note that it is not on its way any more; returns how to give it up."""
        give_up = self._coming.pop(request, None)
        if give_up is not None:
            rank.coming -= 1
        return give_up

    def stop(self) -> None:
        """Fail all of them."""
        for request, give_up in self._coming.items():
            give_up()
            request.sink.fail(EngineShutdown())
        self._coming.clear()


class _Waiting:
    """One request whose prompt is on its way; a `Fetched`."""

    def __init__(
        self, taker: Taker, request: MockRequest, rank: MockRank, prompt: tuple[list[int], list[int]], tokens: int
    ) -> None:
        self._taker, self._request, self._rank = taker, request, rank
        self._prompt, self._tokens, self._cached = prompt, tokens, 0
        self.media: tuple[int, ...] = ()
        """Hashes of the images in the last, unfinished block."""

    def begins(self, about: Any) -> None:
        try:
            coming = msgspec.convert(about, Coming)
        except msgspec.ValidationError as error:
            self._fail(f"what the prefill engine says of it can't be read: {error}")
            return
        if coming.num_tokens != self._tokens:
            self._fail(f"{coming.num_tokens} tokens were computed, and the prompt has {self._tokens}")
        self._cached = coming.cached_tokens

    def arrived(self) -> None:
        if self._taker.done(self._request, self._rank) is not None:
            self._rank.arrived(self._request, *self._prompt, self._cached, self.media)

    def lost(self, error: DynamoException) -> None:
        self._fail(error.message)

    def _fail(self, why: str) -> None:
        """Fail the attempt; the client loses nothing else, since another attempt follows."""
        give_up = self._taker.done(self._request, self._rank)
        if give_up is not None:
            give_up()
            self._request.sink.fail(CannotConnect(f"the prompt did not come from where it was computed: {why}"))


def _source(wanted: PreprocessedRequest) -> tuple[str, str]:
    """Return where a prompt is, and under which name; raises `InvalidArgument` where that can't be read."""
    if wanted.bootstrap_info is not None:
        return wanted.bootstrap_info.bootstrap_host, room_name(wanted.bootstrap_info.bootstrap_room)
    assert wanted.prefill_result is not None
    handover = given(wanted.prefill_result.disaggregated_params)
    if handover.num_tokens != wanted.prompt_tokens:
        raise InvalidArgument(
            f"{PARAMS}.num_tokens: {handover.num_tokens} were computed, and the prompt has {wanted.prompt_tokens}"
        )
    return handover.remote_engine_id, handover.remote_request_id
