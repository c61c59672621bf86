"""Names, subjects and keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import (
    EndpointPath,
    InstanceKey,
    check_name,
    client_key,
    client_prefix,
    control_subject,
    frame_subject,
    instance_key,
    instance_prefix,
    new_id,
    parse_instance_key,
    reply_subject,
    request_subject,
)

KEY = InstanceKey(EndpointPath("ns", "backend", "generate"), 255)
NAMES = st.text("abcXYZ019_-", min_size=1, max_size=8)


def test_what_stands_on_the_wire_and_in_the_store() -> None:
    """Subjects and keys are a contract with other versions."""
    assert request_subject(KEY) == "dyn.ns.ep.backend.generate.000000000000ff.req"
    assert control_subject(KEY) == "dyn.ns.ep.backend.generate.000000000000ff.ctl"
    assert frame_subject("ns", 255) == "dyn.ns.in.000000000000ff.s"
    assert reply_subject("ns", 255, 7) == "dyn.ns.in.000000000000ff.r.7"
    assert instance_key(KEY) == "dynamo/instances/ns/backend/generate/000000000000ff"
    assert client_key("ns", 255) == "dynamo/clients/ns/000000000000ff"
    assert client_key(None, 255) == "dynamo/clients/_all/000000000000ff"


@pytest.mark.parametrize("text", ["ns.backend.generate", "dyn://ns.backend.generate"])
def test_a_path_is_read(text: str) -> None:
    """With and without the scheme."""
    assert EndpointPath.parse(text) == KEY.path
    assert str(KEY.path) == "ns.backend.generate"


@pytest.mark.parametrize(
    "text",
    ["", "ns", "ns.backend", "a.b.c.d", "a..c", "a.b c.d", "a.b.c*", "a.b.>", "dyn://", "a/b.c.d", "ä.b.c", "a.b.c\n"],
)
def test_a_path_is_refused(text: str) -> None:
    """Whatever could not be part of a subject or key is refused at the edge."""
    with pytest.raises(InvalidArgument):
        EndpointPath.parse(text)


def test_a_refusal_names_the_part() -> None:
    """The sentence says which part of the path is wrong."""
    with pytest.raises(InvalidArgument, match="component 'b c' may hold only"):
        EndpointPath.parse("a.b c.d")
    with pytest.raises(InvalidArgument, match="name"):
        check_name("")


@given(NAMES, NAMES, NAMES, st.integers(1, 2**53 - 1))
def test_keys_are_read_back(namespace: str, component: str, endpoint: str, id: int) -> None:  # noqa: A002
    """`parse_instance_key` is the inverse of `instance_key`, and every key is under its prefixes."""
    key = InstanceKey(EndpointPath(namespace, component, endpoint), id)
    assert parse_instance_key(instance_key(key)) == key
    assert instance_key(key).startswith(instance_prefix(namespace))
    assert instance_key(key).startswith(instance_prefix(None))
    assert client_key(namespace, id).startswith(client_prefix(namespace))


@pytest.mark.parametrize(
    "key", ["", "dynamo/instances/a/b/c", "dynamo/instances/a/b/c/xyz", "other/a/b/c/1", "dynamo/instances/a/b/c/1/2"]
)
def test_other_keys_are_refused(key: str) -> None:
    """What is no instance key is an `InvalidArgument`."""
    with pytest.raises(InvalidArgument):
        parse_instance_key(key)


def test_ids() -> None:
    """Ids are exact in JSON numbers, not 0, and hardly ever alike."""
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(0 < entry < 2**53 for entry in ids)
