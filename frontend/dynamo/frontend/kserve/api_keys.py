"""The keys of HTTP's port, asked for by gRPC's, too: as metadata `authorization: Bearer KEY` or `x-api-key`.

`server.py` gives this to grpcio. A call without one is refused before its message is read; that the server lives is
told to everybody, as over HTTP.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import grpc  # type: ignore[import-untyped]

from dynamo.frontend.http.api_keys import ApiKeys
from dynamo.frontend.http.guard import CALLER_FIELDS, no_key

_OPEN: Final = "/ServerLive"
Metadata = Iterable[tuple[str, Any]]


def fields_of(metadata: Metadata) -> list[tuple[bytes, bytes]]:
    """Return metadata of a call as HTTP's header fields. Pure."""
    return [(name.encode(), value.encode() if isinstance(value, str) else bytes(value)) for name, value in metadata]


def with_caller(keys: ApiKeys | None, metadata: Metadata) -> Metadata:
    """Return metadata whose caller is the key that was shown, where keys are asked for.

    The key itself goes no further.
    """
    if keys is None:
        return metadata
    metadata = list(metadata)
    caller = keys.caller(fields_of(metadata)) or b""
    others = [field for field in metadata if field[0].encode() not in CALLER_FIELDS]
    return [*others, ("authorization", caller)]


class KeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls that show no known key."""

    def __init__(self, keys: ApiKeys, refused: Callable[[str], None]) -> None:
        self._keys, self._refused = keys, refused

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Go on with the call, or give it a handler that ends it."""
        fields = fields_of(details.invocation_metadata or ())
        if details.method.endswith(_OPEN) or self._keys.caller(fields) is not None:
            return await continuation(details)
        error = no_key(self._keys.shown(fields))
        self._refused(error.code)

        async def refuse(requests: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)

        return grpc.stream_stream_rpc_method_handler(refuse)
