"""The images of one request: held from when they are asked for until its answer has left."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dynamo.frontend.http.body_budget import Share
from dynamo.frontend.images.parts import ImageRef, not_taken
from dynamo.frontend.limits.request_threads import Turn
from dynamo.frontend.services import Services
from dynamo.llm.model_card import ModelCard
from dynamo.llm.protocols import ImageInput


class RequestImages:
    """Images of one request, loaded once."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._share: Share | None = None
        self.inputs: Sequence[ImageInput] = ()

    async def load(
        self, refs: Sequence[ImageRef], card: ModelCard, caller: bytes, deadline: float | None, turn: Turn | None = None
    ) -> None:
        """Load them; a 400 names the one that can't be taken. `turn`: the request's, which others have meanwhile."""
        services, loader = self._services, self._services.images
        if card.images is None:
            able = sorted({models.name for models in services.pool.served() if models.card.images is not None})
            raise not_taken(refs[0], card.name, able)
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
        elif fetched:
            async with services.threads.turn(caller, deadline) as own:
                self.inputs = await own.run(read)
        else:
            self.inputs = read()  # of a body that is read on the loop
        loader.give_back(self._share, sum(len(image.data) for image in self.inputs))

    def leave(self) -> None:
        """Let go of them."""
        share, self._share, self.inputs = self._share, None, ()
        if share is not None:
            self._services.images.give_back(share)
