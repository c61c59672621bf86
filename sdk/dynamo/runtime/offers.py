"""What another layer says of an endpoint that a program serves: its card, and what stands around its generator.

`dynamo.llm.register_model` offers a model at an endpoint, before or after the program serves that. The runtime knows no
word of models: it puts the card into the record, and each request through `adapt`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dynamo.runtime._peer import Incoming
from dynamo.runtime.generators import from_generator
from dynamo.runtime.names import EndpointPath

Generate = Callable[..., Any]
"""`generate(request)` or `generate(request, context)`: a program's async generator."""


class Offer(NamedTuple):
    """See the module."""

    card: Mapping[str, Any]
    adapt: Callable[[Generate], Generate]


class Offers:
    """Those of one process, by endpoint."""

    def __init__(self) -> None:
        self._by_path: dict[EndpointPath, Offer] = {}

    def put(self, path: EndpointPath, offer: Offer) -> None:
        self._by_path[path] = offer

    def drop(self, path: EndpointPath) -> None:
        self._by_path.pop(path, None)

    def paths(self) -> list[EndpointPath]:
        """Where something is offered."""
        return list(self._by_path)

    def card(self, path: EndpointPath) -> Mapping[str, Any] | None:
        """None: nothing is offered there."""
        offer = self._by_path.get(path)
        return None if offer is None else offer.card

    def handler(self, path: EndpointPath, generate: Generate) -> Callable[[Incoming], None]:
        """The low-level handler of a generator; each request is given to what is offered when it comes."""
        plain = from_generator(generate)
        adapted: tuple[Offer, Callable[[Incoming], None]] | None = None

        def handle(incoming: Incoming) -> None:
            nonlocal adapted
            offer = self._by_path.get(path)
            if offer is None:
                plain(incoming)
                return
            if adapted is None or adapted[0] is not offer:
                adapted = offer, from_generator(offer.adapt(generate))
            adapted[1](incoming)

        return handle
