"""`KserveGrpcService`: KServe's protocol over gRPC from functions of this process, as `HttpService` has HTTP.

The frontend behind it serves both: completions are asked over gRPC, and everything over HTTP on another port.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from dynamo.llm.serving.http_service import HttpService
from dynamo.runtime.errors import InvalidArgument

PORT: Final = 8787
_TENSORS: Final = "models of tensors are not served in this version: add_completions_model takes text"


class KserveGrpcService(HttpService):
    """Serve KServe's protocol over gRPC from functions of this process, as `HttpService` serves HTTP.

    The frontend behind it serves both: completions are asked over gRPC, and everything over HTTP on another port.
    Chats are answered over HTTP only, as gRPC has no messages for them.

    `port` 0 picks a free one, `address` says it once it serves; `host` as `HttpService`'s. HTTP listens on
    `metrics_port`, else on DYN_GRPC_METRICS_PORT, else on 8788. Needs `grpcio` and `protobuf`, which etcd's client
    brings.
    """

    def __init__(self, port: int | None = None, host: str | None = None, *, metrics_port: int | None = None) -> None:
        super().__init__(PORT if port is None else port, host=host)
        self._metrics_port = metrics_port

    def _more(self) -> dict[str, Any]:
        own = {} if self._metrics_port is None else {"grpc_metrics_port": self._metrics_port}
        return {"kserve_grpc_server": True, **own}

    def add_tensor_model(self, model: str, *checksum_and_engine: Any, runtime_config: Any = None) -> NoReturn:
        """Refuse: `InvalidArgument`."""
        raise InvalidArgument(f"KserveGrpcService.add_tensor_model({model!r}): {_TENSORS}")

    def remove_tensor_model(self, model: str) -> NoReturn:
        """Refuse: there are none."""
        raise InvalidArgument(f"{model!r} is not served")

    def list_tensor_models(self) -> list[str]:
        """Return none, since there are none."""
        return []
