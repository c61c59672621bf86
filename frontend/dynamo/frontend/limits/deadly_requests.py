"""Requests that were with workers when they died: one that was with two is refused for a while. Pure; no clock.

A body that takes its engine down comes again: its client retries, and so does its library. `generation/retries.py`
tells what was lost and what went well; one table per process. `docs/design/serving/migration.md` says who is blamed,
and who isn't.
"""

from __future__ import annotations

import hashlib
import logging
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import TakesWorkersDown
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import ImageInput, PreprocessedRequest, TextRequest
from dynamo.runtime.names import InstanceKey

log = logging.getLogger(__name__)

WORKERS: Final = 2
"""That die with a request before it is refused."""
SECONDS: Final = 60.0
BLAMED: Final = 8
"""Requests of one death that are suspected: those that were sent to it last."""
MOST: Final = 1024
"""Requests, and deaths, that are kept in mind."""


OnItem = Callable[[Any, bool], None]
AnyRequest = PreprocessedRequest | TextRequest | EmbeddingRequest


class _Suspect(msgspec.Struct):
    size: int
    until: float
    deaths: set[InstanceKey]
    trial: InstanceKey | None = None
    """The one worker that has it now: a second one isn't risked beside it."""


class Suspects:
    """Remembers which requests were with workers when they died, and refuses those that were with two."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.kept: OrderedDict[bytes, _Suspect] = OrderedDict()
        """By their digests; mostly empty, which each attempt looks at."""
        self._sizes: Counter[int] = Counter()
        self._deaths: OrderedDict[InstanceKey, list[tuple[float, bytes]]] = OrderedDict()
        """The requests that each of them was sent last, the newest at the end."""

    def known(self, request: AnyRequest) -> bytes | None:
        """Return the digest of a request that is suspected; None for any other, mostly without reading it."""
        if self._sizes[_size(request)] == 0:
            return None
        digest = digest_of(request)
        suspect = self.kept.get(digest)
        if suspect is not None and self._clock() >= suspect.until:
            self.cleared(digest)
            suspect = None
        return None if suspect is None else digest

    def seconds_left(self, digest: bytes) -> float:
        """Return for how many seconds it is refused; 0: it isn't."""
        suspect = self.kept.get(digest)
        if suspect is None or sum(self._blames(key, digest) for key in suspect.deaths) < WORKERS:
            return 0.0
        return max(0.0, suspect.until - self._clock())

    def check(self, digest: bytes) -> None:
        """Raise `TakesWorkersDown` where it is refused."""
        if (left := self.seconds_left(digest)) > 0:
            raise TakesWorkersDown(
                f"{WORKERS} workers died with this request before its first token; it is refused for {left:.0f} s. "
                "Change it, or tell the operator of this service."
            )

    def excluded(self, digest: bytes, there: Collection[InstanceKey]) -> set[InstanceKey]:
        """Return workers that it may not go to now.

        Only one has it at a time, and not one that tries another suspect.
        """
        suspect = self.kept.get(digest)
        if suspect is None:
            return set()
        if suspect.trial in there:
            return {key for key in there if key != suspect.trial}
        others = {other.trial for other in self.kept.values() if other.trial in there}
        return {key for key in others if key is not None} if len(others) < len(there) else set()

    def trial(self, digest: bytes, key: InstanceKey, on_item: OnItem) -> OnItem:
        """Note that it goes to this worker, and return who is to hear what comes of it: an answer clears it."""
        if (suspect := self.kept.get(digest)) is not None:
            suspect.trial = key

        def hear(data: Any, last: bool) -> None:
            self.cleared(digest)
            on_item(data, last)

        return hear

    def left(self, digest: bytes, key: InstanceKey) -> None:
        """Note that the worker doesn't have it any more, and lives."""
        suspect = self.kept.get(digest)
        if suspect is not None and suspect.trial == key:
            suspect.trial = None

    def lost(self, request: AnyRequest, key: InstanceKey, sent: float) -> bytes:
        """Blame a request that was sent to a worker which died before its first token; return its digest."""
        digest, now = digest_of(request), self._clock()
        death = self._deaths.setdefault(key, [])
        insort(death, (sent, digest))
        del death[:-BLAMED]
        while len(self._deaths) > MOST:
            self._deaths.popitem(last=False)
        suspect = self.kept.get(digest)
        if suspect is None:
            suspect = self.kept[digest] = _Suspect(_size(request), 0.0, set())
            self._sizes[suspect.size] += 1
        suspect.deaths.add(key)
        suspect.trial, suspect.until = None, now + SECONDS
        if self.seconds_left(digest):
            log.warning("%d workers died with the same request (%s): it is refused now", WORKERS, digest.hex())
        while len(self.kept) > MOST:
            self.cleared(next(iter(self.kept)))
        return digest

    def cleared(self, digest: bytes) -> None:
        """Forget a request that a worker has answered, and lived."""
        suspect = self.kept.pop(digest, None)
        if suspect is not None:
            self._sizes[suspect.size] -= 1
            if not self._sizes[suspect.size]:
                del self._sizes[suspect.size]

    def _blames(self, key: InstanceKey, digest: bytes) -> bool:
        return any(digest == other for _, other in self._deaths.get(key, ()))


def _size(request: AnyRequest) -> int:
    return len(request.token_ids) if isinstance(request, PreprocessedRequest) else -1


def digest_of(request: AnyRequest) -> bytes:
    """Return a digest, the same for a client's second try and for each choice of a body.

    Seeds and what routing adds don't count.
    """
    if isinstance(request, PreprocessedRequest):
        options = msgspec.structs.replace(request.sampling_options, seed=None)
        request = msgspec.structs.replace(
            request, sampling_options=options, annotations=[], routing=None, dp_rank=None, prefill_result=None,
            bootstrap_info=None, images=_named(request.images),
        )  # fmt: skip
    elif isinstance(request, TextRequest):
        images = _named(request.images)
        request = msgspec.structs.replace(request, body={**request.body, "seed": None}, images=images)
    return hashlib.blake2b(msgspec.msgpack.encode(request), digest_size=16).digest()


def _named(images: list[ImageInput] | None) -> list[ImageInput] | None:
    """Return images by their digests alone."""
    return images and [msgspec.structs.replace(image, data=b"") for image in images]
