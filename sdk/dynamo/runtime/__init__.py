"""The bottom layer: instances, endpoints, requests and discovery. No word of language models.

Everything public is listed here; modules with a leading underscore are not for import
from outside. etcd's and HTTP's libraries are loaded where they are first needed.

Names are imported when they are first used, so that a part costs only those who need it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from dynamo.runtime.client import Annotated as Annotated
    from dynamo.runtime.client import Client as Client
    from dynamo.runtime.client import InvalidRequest as InvalidRequest
    from dynamo.runtime.client import ItemStream as ItemStream
    from dynamo.runtime.client import UnaryClient as UnaryClient
    from dynamo.runtime.client import serve_unary_endpoint as serve_unary_endpoint
    from dynamo.runtime.component import Component as Component
    from dynamo.runtime.component import Endpoint as Endpoint
    from dynamo.runtime.component import Namespace as Namespace
    from dynamo.runtime.component import Served as Served
    from dynamo.runtime.config import EtcdConfig as EtcdConfig
    from dynamo.runtime.config import NatsConfig as NatsConfig
    from dynamo.runtime.config import RuntimeConfig as RuntimeConfig
    from dynamo.runtime.context import Context as Context
    from dynamo.runtime.context import SpanProxy as SpanProxy
    from dynamo.runtime.decorators import dynamo_endpoint as dynamo_endpoint
    from dynamo.runtime.decorators import dynamo_worker as dynamo_worker
    from dynamo.runtime.errors import Cancelled as Cancelled
    from dynamo.runtime.errors import CannotConnect as CannotConnect
    from dynamo.runtime.errors import CapacityExceeded as CapacityExceeded
    from dynamo.runtime.errors import ConnectionTimeout as ConnectionTimeout
    from dynamo.runtime.errors import DeadlineExceeded as DeadlineExceeded
    from dynamo.runtime.errors import Disconnected as Disconnected
    from dynamo.runtime.errors import DynamoException as DynamoException
    from dynamo.runtime.errors import EngineError as EngineError
    from dynamo.runtime.errors import EngineShutdown as EngineShutdown
    from dynamo.runtime.errors import InvalidArgument as InvalidArgument
    from dynamo.runtime.errors import NoInstances as NoInstances
    from dynamo.runtime.errors import ProtocolMismatch as ProtocolMismatch
    from dynamo.runtime.errors import StreamIncomplete as StreamIncomplete
    from dynamo.runtime.errors import Unknown as Unknown
    from dynamo.runtime.errors import WorkerUnavailable as WorkerUnavailable
    from dynamo.runtime.etcd_client import EtcdClient as EtcdClient
    from dynamo.runtime.etcd_client import EtcdKvCache as EtcdKvCache
    from dynamo.runtime.logs import configure_logging as configure_logging
    from dynamo.runtime.memory import MemoryWorld as MemoryWorld
    from dynamo.runtime.names import EndpointPath as EndpointPath
    from dynamo.runtime.names import InstanceKey as InstanceKey
    from dynamo.runtime.registry import Instance as Instance
    from dynamo.runtime.registry import InstanceView as InstanceView
    from dynamo.runtime.registry import Readiness as Readiness
    from dynamo.runtime.runtime import DistributedRuntime as DistributedRuntime
    from dynamo.runtime.selection import RouterMode as RouterMode
    from dynamo.runtime.tokens import CancellationToken as CancellationToken

__all__ = [
    "Annotated",
    "CancellationToken",
    "Cancelled",
    "CannotConnect",
    "CapacityExceeded",
    "Client",
    "Component",
    "ConnectionTimeout",
    "Context",
    "DeadlineExceeded",
    "Disconnected",
    "DistributedRuntime",
    "DynamoException",
    "Endpoint",
    "EndpointPath",
    "EngineError",
    "EngineShutdown",
    "EtcdClient",
    "EtcdConfig",
    "EtcdKvCache",
    "Instance",
    "InstanceKey",
    "InstanceView",
    "InvalidArgument",
    "InvalidRequest",
    "ItemStream",
    "MemoryWorld",
    "Namespace",
    "NatsConfig",
    "NoInstances",
    "ProtocolMismatch",
    "Readiness",
    "RouterMode",
    "RuntimeConfig",
    "Served",
    "SpanProxy",
    "StreamIncomplete",
    "UnaryClient",
    "Unknown",
    "WorkerUnavailable",
    "configure_logging",
    "dynamo_endpoint",
    "dynamo_worker",
    "serve_unary_endpoint",
]

_HOMES: Final = {
    "Annotated": "client",
    "CancellationToken": "tokens",
    "Cancelled": "errors",
    "CannotConnect": "errors",
    "CapacityExceeded": "errors",
    "Client": "client",
    "Component": "component",
    "ConnectionTimeout": "errors",
    "Context": "context",
    "DeadlineExceeded": "errors",
    "Disconnected": "errors",
    "DistributedRuntime": "runtime",
    "DynamoException": "errors",
    "Endpoint": "component",
    "EndpointPath": "names",
    "EngineError": "errors",
    "EngineShutdown": "errors",
    "EtcdClient": "etcd_client",
    "EtcdConfig": "config",
    "EtcdKvCache": "etcd_client",
    "Instance": "registry",
    "InstanceKey": "names",
    "InstanceView": "registry",
    "InvalidArgument": "errors",
    "InvalidRequest": "client",
    "ItemStream": "client",
    "MemoryWorld": "memory",
    "Namespace": "component",
    "NatsConfig": "config",
    "NoInstances": "errors",
    "ProtocolMismatch": "errors",
    "Readiness": "registry",
    "RouterMode": "selection",
    "RuntimeConfig": "config",
    "Served": "component",
    "SpanProxy": "context",
    "StreamIncomplete": "errors",
    "UnaryClient": "client",
    "Unknown": "errors",
    "WorkerUnavailable": "errors",
    "configure_logging": "logs",
    "dynamo_endpoint": "decorators",
    "dynamo_worker": "decorators",
    "serve_unary_endpoint": "client",
}
"""The module of each name; tests/test_public_api.py holds it against the imports above."""

if not TYPE_CHECKING:

    def __getattr__(name):
        home = _HOMES.get(name)
        if home is None:
            if not name.startswith("_"):
                _say_what_is_left_out(name)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        return found

    def _say_what_is_left_out(name):
        # An ImportError keeps its sentence through `from dynamo.runtime import …`, an AttributeError doesn't.
        left_out = importlib.import_module(f"{__name__}.left_out")
        if name in left_out.LEFT_OUT:
            raise ImportError(left_out.sentence(name))

    def __dir__():
        return sorted({*globals(), *__all__})
