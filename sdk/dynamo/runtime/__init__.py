"""The bottom layer: instances, endpoints, requests and discovery. No word of language models.

Everything public is listed here; modules with a leading underscore are not for import
from outside. etcd's and HTTP's libraries are loaded where they are first needed.
"""

from dynamo.runtime.client import Annotated, Client, ItemStream, UnaryClient
from dynamo.runtime.component import Component, Endpoint, Namespace, Served
from dynamo.runtime.config import EtcdConfig, NatsConfig, RuntimeConfig
from dynamo.runtime.context import Context
from dynamo.runtime.decorators import dynamo_endpoint, dynamo_worker
from dynamo.runtime.errors import (
    Cancelled,
    CannotConnect,
    CapacityExceeded,
    ConnectionTimeout,
    DeadlineExceeded,
    Disconnected,
    DynamoException,
    EngineError,
    EngineShutdown,
    InvalidArgument,
    NoInstances,
    ProtocolMismatch,
    StreamIncomplete,
    Unknown,
    WorkerUnavailable,
)
from dynamo.runtime.logs import configure_logging
from dynamo.runtime.memory import MemoryWorld
from dynamo.runtime.names import EndpointPath, InstanceKey
from dynamo.runtime.registry import Instance, InstanceView, Readiness
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.runtime.selection import RouterMode

__all__ = [
    "Annotated",
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
    "EtcdConfig",
    "Instance",
    "InstanceKey",
    "InstanceView",
    "InvalidArgument",
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
    "StreamIncomplete",
    "UnaryClient",
    "Unknown",
    "WorkerUnavailable",
    "configure_logging",
    "dynamo_endpoint",
    "dynamo_worker",
]
