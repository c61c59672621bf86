"""The endpoint that a publisher of 0.x means, which was given its component."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.component import Component, Endpoint

USUAL: Final = "generate"


def endpoint_of(place: Endpoint | Component) -> Endpoint:
    """Of a component the endpoint that this process registered a model at, or serves; else `generate`."""
    if isinstance(place, Endpoint):
        return place
    runtime = place.runtime
    known = [*runtime.offers.paths(), *(served.path for served in runtime.served)]
    found = next((path for path in known if path[:2] == (place.namespace, place.name)), None)
    return place.endpoint(USUAL if found is None else found.endpoint)
