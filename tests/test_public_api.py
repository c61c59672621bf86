"""The public surface of `dynamo.runtime`: pinned, complete and cheap to import."""

from __future__ import annotations

import subprocess
import sys

import dynamo.runtime

PUBLIC = """
    Annotated Cancelled CannotConnect CapacityExceeded Client Component ConnectionTimeout Context DeadlineExceeded
    Disconnected DistributedRuntime DynamoException Endpoint EndpointPath EngineError EngineShutdown EtcdConfig
    Instance InstanceKey InstanceView InvalidArgument ItemStream MemoryWorld Namespace NatsConfig NoInstances
    ProtocolMismatch Readiness RouterMode RuntimeConfig Served StreamIncomplete UnaryClient Unknown
    WorkerUnavailable configure_logging dynamo_endpoint dynamo_worker
"""


def test_all_is_pinned() -> None:
    """A name that comes or goes is a decision: change this list, the changelog and the documentation with it."""
    assert sorted(dynamo.runtime.__all__) == sorted(PUBLIC.split())


def test_every_name_exists() -> None:
    """`__all__` promises nothing that is not there."""
    assert [name for name in dynamo.runtime.__all__ if not hasattr(dynamo.runtime, name)] == []


def test_importing_is_cheap() -> None:
    """gRPC, HTTP servers and metrics are imported where they are first used."""
    code = "import sys, dynamo.runtime; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert not {"grpc", "aetcd", "uvicorn", "fastapi", "prometheus_client", "click"} & set(loaded.stdout.split())
