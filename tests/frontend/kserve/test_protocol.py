"""`inference.proto` says what Triton's published client says, and what is made of it is up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc.model_config_pb2 as of_models
import tritonclient.grpc.service_pb2 as of_triton

from dynamo.frontend.kserve import inference_pb2
from dynamo.frontend.kserve.generate_messages import HERE, generate

OURS = inference_pb2.DESCRIPTOR


def test_it_is_up_to_date(tmp_path: Path) -> None:
    """`make generate` would change nothing."""
    generate(tmp_path)
    assert (tmp_path / "inference_pb2.py").read_text() == (HERE / "inference_pb2.py").read_text(), "run make generate"


def theirs(name: str) -> Any:
    for module in (of_triton, of_models):
        if name in module.DESCRIPTOR.message_types_by_name:
            return module.DESCRIPTOR.message_types_by_name[name]
    raise LookupError(name)


def same_fields(mine: Any, other: Any) -> None:
    for field in mine.fields:
        value = other.fields_by_name[field.name]
        assert (field.number, field.type, field.is_repeated) == (value.number, value.type, value.is_repeated), (
            field.name
        )
        if field.message_type is not None:
            assert field.message_type.full_name == value.message_type.full_name
    for nested in mine.nested_types:
        same_fields(nested, other.nested_types_by_name[nested.name])


@pytest.mark.parametrize("name", sorted(OURS.message_types_by_name))
def test_messages_are_the_protocols(name: str) -> None:
    """Each of our fields has the same number and type there, in nested messages too."""
    same_fields(OURS.message_types_by_name[name], theirs(name))


def test_methods_and_datatypes_are_the_protocols() -> None:
    """So are the methods' messages, and the numbers of datatypes."""
    other = of_triton.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    [service] = OURS.services_by_name.values()
    for method in service.methods:
        value = other[method.name]
        assert (method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming) == (
            value.input_type.name, value.output_type.name, value.client_streaming, value.server_streaming,
        )  # fmt: skip
    assert dict(inference_pb2.DataType.items()) == dict(of_models.DataType.items())


def test_nothing_of_it_is_loaded_unless_asked_for() -> None:
    """A frontend without gRPC imports neither it nor protobuf."""
    code = "import dynamo.frontend.process, sys; print([m for m in sys.modules if m.startswith(('grpc', 'google.'))], "
    code += "'dynamo.frontend.kserve' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[] False"
