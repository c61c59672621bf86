"""The images of one request: held from when they are asked for until its answer has left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from dynamo.frontend.http.body_budget import Share
from dynamo.frontend.images.loading import ImageLoader
from dynamo.frontend.images.parts import ImageRef, not_taken
from dynamo.frontend.limits.request_threads import RequestThreads, Turn
from dynamo.llm.model_card import ModelCard
from dynamo.llm.protocols import ImageInput

_SHORT: Final = 8192
"""Characters of images that are read on the loop; a header of many segments may be made to take long."""


class RequestImages:
    """Images of one request, loaded once. `cards` are those of all models here, for whom one takes none."""

    def __init__(self, loader: ImageLoader, threads: RequestThreads, cards: Callable[[], Iterable[ModelCard]]) -> None:
        self._loader, self._threads, self._cards = loader, threads, cards
        self._share: Share | None = None
        self.inputs: Sequence[ImageInput] = ()

    async def load(
        self, refs: Sequence[ImageRef], card: ModelCard, caller: bytes, deadline: float | None, turn: Turn | None = None
    ) -> None:
        """Load them; a 400 names the one that can't be taken. `turn`: the request's, which others have meanwhile."""
        loader = self._loader
        if card.images is None:
            able = sorted({own.name for own in self._cards() if own.images is not None})
            raise not_taken(refs[0], card.name, able, card.images_hint)
        loader.check(refs)
        if turn is not None:
            turn.leave()
        self._share = await loader.take(refs, caller)
        fetched = await loader.fetched(refs, deadline)
        if turn is not None:
            await turn.enter()
        read = partial(loader.read, refs, fetched)
        if turn is not None:
            self.inputs = await turn.run(read)
        elif fetched or sum(len(ref.url) for ref in refs) > _SHORT:
            async with self._threads.turn(caller, deadline) as own:
                self.inputs = await own.run(read)
        else:
            self.inputs = read()
        loader.give_back(self._share, sum(len(image.data) for image in self.inputs))

    def leave(self) -> None:
        """Let go of them."""
        share, self._share, self.inputs = self._share, None, ()
        if share is not None:
            self._loader.give_back(share)
