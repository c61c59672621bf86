"""Questions between frontend processes of one namespace about what they have stored.

Over the bus that requests travel on, on subjects of the namespace: nothing is to be installed, and a pipeline's NATS
user may do it. Nobody has to be looked for, since an id says which process has it. Answers larger than a message come
in pieces; each question is one of the request plane's controls, which bounds how many are answered at once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec

from dynamo.frontend.errors import ApiError, to_api_error, unavailable
from dynamo.frontend.stored.store import StoredResponse
from dynamo.runtime.errors import CannotConnect, DynamoException, InvalidArgument
from dynamo.runtime.names import ALL_NAMESPACES, EndpointPath, InstanceKey
from dynamo.runtime.request_plane.server import Incoming
from dynamo.runtime.runtime import DistributedRuntime

log = logging.getLogger(__name__)
OPERATION: Final = "stored"
SECONDS: Final = 5.0
"""Within which another process must have answered."""
MOST_PIECES: Final = 256


class Question(msgspec.Struct, array_like=True):
    """Question about what one owner has in a process."""

    kind: str
    owner: bytes
    ids: list[str]
    most: int = 0
    """Bytes of a conversation; of events, the number of the first."""
    at: int = 0
    """Where in the answer to begin."""
    data: bytes = b""
    """What is to be changed of a conversation."""


class Found(msgspec.Struct, array_like=True):
    """What was found: responses, or bytes."""

    responses: list[tuple[str, bytes, bytes, str | None, list[str], int]] = []
    data: bytes = b""
    over: bool = False
    """Of events: none follows."""


class _Piece(msgspec.Struct, array_like=True):
    error: tuple[int, str, str, str | None, str] | None
    data: bytes = b""
    size: int = 0


Answer: TypeAlias = Callable[[Question], Awaitable[Found]]
_question: Final = msgspec.msgpack.Decoder(Question)
_piece: Final = msgspec.msgpack.Decoder(_Piece)
_found: Final = msgspec.msgpack.Decoder(Found)
_encode: Final = msgspec.msgpack.encode


class GoneProcess(Exception):  # noqa: N818 - what it means is the asker's to say
    """The process that had it isn't there any more."""


class Peers:
    """This process among those that share a namespace. `node` is how the others name it."""

    def __init__(self, runtime: DistributedRuntime, namespace: str) -> None:
        self._caller, self._server, self.node = runtime.caller, runtime.server, runtime.server.worker_id
        self._path = EndpointPath(namespace or ALL_NAMESPACES, "frontend", "stored-responses")
        self.most = runtime.bus.max_payload // 2

    async def serve(self, answer: Answer) -> None:
        """Answer the others from now on."""

        async def asked(body: Any) -> bytes:
            return _encode(await self._answered(answer, _question.decode(body)))

        self._server.on_control(self._path, OPERATION, asked)
        await self._server.serve(self._path, _refuse)
        self.node = self._server.worker_id

    async def _answered(self, answer: Answer, question: Question) -> _Piece:
        try:
            data = _encode(await answer(question))
        except (ApiError, DynamoException) as error:
            said = to_api_error(error)
            return _Piece((said.status, said.message, said.code, said.param, said.kind))
        return _Piece(None, data[question.at : question.at + self.most], len(data))

    async def ask(self, node: int, question: Question) -> Found:
        """Ask another process; raises its error, or `GoneProcess`."""
        data = bytearray()
        for _ in range(MOST_PIECES):
            question.at = len(data)
            piece = await self._piece(node, question)
            data += piece.data
            if len(data) >= piece.size or not piece.data:
                break
        try:
            return _found.decode(data)
        except msgspec.DecodeError:  # what it has changed between two pieces
            text = "what another frontend has stored changed while it was read; try again."
            raise unavailable(text, "stored_elsewhere") from None

    async def _piece(self, node: int, question: Question) -> _Piece:
        instance = InstanceKey(self._path, node)
        try:
            answer = await self._caller.control(instance, OPERATION, _encode(question), timeout=SECONDS)
        except CannotConnect:
            raise GoneProcess from None
        except DynamoException as error:
            text = f"the frontend that has stored this doesn't answer ({error.message}); try again in a moment."
            raise unavailable(text[:1].upper() + text[1:], "stored_elsewhere") from None
        piece = _piece.decode(answer)
        if piece.error is not None:
            status, message, code, param, kind = piece.error
            raise ApiError(status, message, code=code, param=param, kind=kind)
        return piece


def wired(stored: StoredResponse) -> tuple[str, bytes, bytes, str | None, list[str], int]:
    """Return a response as it travels."""
    return stored.id, stored.response, stored.input, stored.previous, stored.items, stored.count


def unwired(owner: bytes, sent: tuple[str, bytes, bytes, str | None, list[str], int]) -> StoredResponse:
    """Return a response that has travelled."""
    response_id, response, given, previous, items, count = sent
    return StoredResponse(response_id, owner, response, given, previous, items, count)


def _refuse(incoming: Incoming) -> None:
    incoming.fail(InvalidArgument("this endpoint answers questions only"))
