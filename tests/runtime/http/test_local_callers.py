"""Who counts as this machine."""

from __future__ import annotations

import pytest

from dynamo.runtime.http.local_callers import from_this_machine, is_loopback


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "::ffff:7f00:1"])
def test_this_machine(address: str) -> None:
    """Two addresses, however they are written."""
    assert is_loopback(address)
    assert from_this_machine(address, [b"host", b"user-agent", b"content-type"])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.6",
        "127.0.0.2",
        "127.1",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "::ffff:127.0.0.6",
        "fe80::1%lo",
        "::2",
        "",
        "x:y",
    ],
)
def test_another_one(address: str) -> None:
    """A sidecar's 127.0.0.6 is another machine's word; so is what can't be read."""
    assert not is_loopback(address)


def test_an_address_that_nobody_knows() -> None:
    """A client that has reset its connection by then has none: it isn't this machine for that."""
    assert not from_this_machine(None, [])


@pytest.mark.parametrize(
    "name",
    [
        b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-client-cert", b"x-envoy-external-address", b"forwarded",
        b"via", b"x-real-ip", b"origin", b"sec-fetch-mode", b"true-client-ip",
    ],
)  # fmt: skip
def test_on_behalf_of_others(name: bytes) -> None:
    """A proxy or a browser on this machine speaks for somebody else."""
    assert not from_this_machine("127.0.0.1", [b"host", name])
