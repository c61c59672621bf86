"""`inference.GRPCInferenceService`: its methods, over the route of /v1/completions.

`server.py` makes one and serves it. What a method raises becomes the call's status; a call that ends early, because
its client left or its time is over, leaves its requests, whose engines are freed then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc  # type: ignore[import-untyped]
import msgspec
from google.protobuf.message import DecodeError

from dynamo.frontend.errors import ApiError, bad_request
from dynamo.frontend.health import health
from dynamo.frontend.http.asgi_call import Exchange, Take
from dynamo.frontend.kserve import inference_pb2 as messages
from dynamo.frontend.kserve import metadata as described
from dynamo.frontend.kserve.api_keys import with_caller
from dynamo.frontend.kserve.request import Asked, read
from dynamo.frontend.kserve.response import whole
from dynamo.frontend.kserve.status_codes import Refusal, Slow, refusal, refusal_of
from dynamo.frontend.kserve.streaming import Streaming, Waits
from dynamo.frontend.routes.generate import GenerateRoute
from dynamo.frontend.routes.system import own_version
from dynamo.frontend.services import Services
from dynamo.runtime.process.tasks import TaskOwner

log = logging.getLogger(__name__)
NAME: Final = "inference.GRPCInferenceService"
SERVER_NAME: Final = "dynamo"
NEXT_SECONDS: Final = 3600.0
"""That a stream waits for its next request."""
_TOLD: Final = ("x-request-id", "retry-after")
"""Headers of an answer that become metadata."""
Method = Callable[[Any, Any], Awaitable[Any]]


class InferenceService:
    """Answers the calls of KServe's protocol, each by the routes that HTTP has."""

    def __init__(self, services: Services) -> None:
        self._services, self._settings = services, services.settings
        self._route = GenerateRoute(services, chat=False)
        self._tasks = TaskOwner(log)
        self._asked = float("-inf")
        self.halt = asyncio.Event()
        """Set: streams take no more requests."""

    @property
    def running(self) -> int:
        """Return how many requests are being answered."""
        return len(self._tasks)

    @property
    def tasks(self) -> TaskOwner:
        """Theirs."""
        return self._tasks

    @property
    def asked(self) -> float:
        """When the last request came, by the loop's clock."""
        return self._asked

    def handlers(self) -> Any:
        """Return what a gRPC server is given."""
        unary = {
            "ServerLive": self.server_live, "ServerReady": self.server_ready, "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata, "ModelMetadata": self.model_metadata,
            "ModelConfig": self.model_config, "RepositoryIndex": self.repository_index, "ModelInfer": self.model_infer,
        }  # fmt: skip
        methods = {
            name: grpc.stream_unary_rpc_method_handler(  # grpcio would wait for the one message without end
                _answering(self._one(method)),
                request_deserializer=getattr(messages, f"{name}Request").FromString,
                response_serializer=getattr(messages, f"{name}Response").SerializeToString,
            )
            for name, method in unary.items()
        }
        methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            _answering(self.model_stream_infer),
            request_deserializer=messages.ModelInferRequest.FromString,
            response_serializer=messages.ModelStreamInferResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(NAME, methods)

    def _one(self, method: Method) -> Method:
        """Return the method, given the one message of its call; it has to come within --body-timeout-secs."""
        seconds = self._settings.timeouts.body

        async def answer(requests: Any, context: Any) -> Any:
            try:
                async with asyncio.timeout(seconds):
                    request = await context.read()
            except TimeoutError:
                self._services.metrics.hit("body")
                raise Refusal("DEADLINE_EXCEEDED", f"the request did not arrive within {seconds:g} s") from None
            if request is grpc.aio.EOF:
                raise Refusal("INVALID_ARGUMENT", "the call has no request: it ended without a message")
            return await method(request, context)

        return answer

    # Asked about.

    async def server_live(self, request: Any, context: Any) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, context: Any) -> Any:
        services = self._services
        status, _ = health(services.pool, services.lifecycle.draining, services.connected())
        return messages.ServerReadyResponse(ready=status == 200)

    async def model_ready(self, request: Any, context: Any) -> Any:
        return messages.ModelReadyResponse(ready=described.is_ready(self._services.pool, request.name))

    async def server_metadata(self, request: Any, context: Any) -> Any:
        return messages.ServerMetadataResponse(name=SERVER_NAME, version=own_version(), extensions=described.EXTENSIONS)

    async def model_metadata(self, request: Any, context: Any) -> Any:
        return described.metadata(self._services.pool, request.name)

    async def model_config(self, request: Any, context: Any) -> Any:
        return described.configuration(self._services.pool, request.name)

    async def repository_index(self, request: Any, context: Any) -> Any:
        return described.index(self._services.pool, request.ready)

    # Asked.

    async def model_infer(self, request: Any, context: Any) -> Any:
        """Answer one request."""
        asked = read(request)
        if asked.stream:
            raise bad_request("streaming: ModelInfer gives one whole answer; ask ModelStreamInfer.", "streaming")
        exchange = await self.ask(asked, context)
        if metadata := _told(exchange):
            context.set_trailing_metadata(metadata)
        return whole(asked, bytes(exchange.content))

    async def model_stream_infer(self, requests: Any, context: Any) -> None:
        """Answer the requests of a stream."""
        limits = Waits(self._settings.timeouts.keep_alive, NEXT_SECONDS, self._settings.write_timeout_secs)
        await Streaming(self.ask, context, self.halt, limits, self._services.metrics.hit).run()

    async def ask(self, asked: Asked, context: Any, take: Take | None = None) -> Exchange:
        """Have a request answered; `Refusal` or `ApiError` where it isn't. Cancelled, the request is left."""
        self._asked = asyncio.get_running_loop().time()
        described.refuse_others(self._services.pool, asked.body["model"])
        exchange = Exchange(msgspec.json.encode(asked.body), take)
        limits = [limit for limit in (context.time_remaining(), asked.seconds) if limit is not None]
        metadata = with_caller(self._services.keys, context.invocation_metadata() or ())
        scope = exchange.scope(metadata, context.peer(), asked.id, min(limits, default=None))
        serving = asyncio.ensure_future(self._route(scope, exchange.receive, exchange.send))
        self._tasks.keep(serving)
        try:
            await asyncio.wait([serving])
        except asyncio.CancelledError:
            exchange.leave()
            raise
        serving.result()
        if exchange.cut:
            raise Slow
        if exchange.status != 200:
            raise refusal_of(exchange.status, bytes(exchange.content), _told(exchange))
        return exchange


def _told(exchange: Exchange) -> tuple[tuple[str, str], ...]:
    values = {name.decode(): value.decode() for name, value in exchange.headers}
    return tuple((name, values[name]) for name in _TOLD if name in values)


def _answering(method: Method) -> Method:
    """Return the method, with what it raises as the call's status."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except ApiError as error:
            refused = refusal(error)
        except Refusal as error:
            refused = error
        except DecodeError:
            refused = Refusal("INVALID_ARGUMENT", "the request can't be read: it is no message of this method")
        except (asyncio.CancelledError, grpc.RpcError, grpc.aio.AbortError):
            raise
        except Exception:  # a mistake of ours: the client learns that there was one, the log which
            log.exception("a gRPC call failed")
            refused = Refusal(
                "INTERNAL", "The server had an error while processing the request; its log has the cause."
            )
        metadata = tuple((name, value) for name, value in refused.headers if name in _TOLD)
        return await context.abort(getattr(grpc.StatusCode, refused.code), refused.message, metadata)

    return answer
