"""The public surface of `dynamo.runtime`: pinned, complete and cheap to import."""

from __future__ import annotations

import ast
import subprocess
import sys
import types
from pathlib import Path

import pytest

import dynamo.llm
import dynamo.runtime

PUBLIC = """
    Annotated CancellationToken Cancelled CannotConnect CapacityExceeded Client Component ConnectionTimeout
    Context DeadlineExceeded Disconnected DistributedRuntime DynamoException Endpoint EndpointPath EngineError
    EngineShutdown EtcdClient EtcdConfig EtcdKvCache Instance InstanceKey InstanceView InvalidArgument
    InvalidRequest ItemStream MemoryWorld Namespace NatsConfig NoInstances ProtocolMismatch Readiness
    RouterMode RuntimeConfig Served SpanProxy StreamIncomplete UnaryClient Unknown WorkerUnavailable
    configure_logging dynamo_endpoint dynamo_worker serve_unary_endpoint
"""


def test_all_is_pinned() -> None:
    """A name that comes or goes is a decision: change this list, the changelog and the documentation with it."""
    assert sorted(vars(dynamo.runtime)["__all__"]) == sorted(PUBLIC.split())


def test_every_name_exists() -> None:
    """`__all__` promises nothing that is not there."""
    assert [name for name in vars(dynamo.runtime)["__all__"] if not hasattr(dynamo.runtime, name)] == []


def test_importing_is_cheap() -> None:
    """gRPC, HTTP servers and metrics are imported where they are first used."""
    code = "import sys, dynamo.runtime; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert not {"grpc", "aetcd", "uvicorn", "fastapi", "prometheus_client", "click"} & set(loaded.stdout.split())


def imported_for_type_checkers(module: types.ModuleType) -> dict[str, str]:
    """Name to module, of the imports that only type checkers follow."""
    tree = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {
        alias.name: str(node.module) for node in imports for alias in node.names
        if str(node.module).startswith(f"{module.__name__}.")
    }  # fmt: skip


@pytest.mark.parametrize("module", [dynamo.runtime, dynamo.llm])
def test_names_come_from_where_type_checkers_think(module: types.ModuleType) -> None:
    """The table of lazy names says the same as the imports, and both say the same as `__all__`."""
    homes = {name: f"{module.__name__}.{home}" for name, home in vars(module)["_HOMES"].items()}
    assert homes == imported_for_type_checkers(module)
    assert sorted(homes) == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        module.nonsense  # noqa: B018 - looking is the test


@pytest.mark.parametrize("name", ["dynamo.runtime", "dynamo.llm"])
def test_a_package_costs_what_is_used_of_it(name: str) -> None:
    """`import dynamo.llm` alone brings none of its parts, and neither msgspec nor asyncio."""
    code = f"import sys, {name}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    names = set(loaded.stdout.split())
    assert {name for name in names if name.startswith("dynamo.")} == {name}
    assert not {"msgspec", "asyncio"} & names
