"""Addresses that images may be fetched from."""

from __future__ import annotations

import pytest

from dynamo.frontend.images.addresses import is_public


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "93.184.215.14", "2606:4700::1111", "2a00:1450:4001::1"])
def test_public(address: str) -> None:
    """The internet's own are asked."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "169.254.170.2", "100.64.0.1", "100.100.100.200", "192.0.0.192", "198.18.0.1", "224.0.0.1",
        "239.1.1.1", "255.255.255.255", "240.0.0.1", "168.63.129.16", "203.0.113.5", "192.88.99.1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "2a00:1450:4001::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:a9fe:a9fe::1", "2001:0:7f00:1::",
        "2001:db8::1", "fec0::1", "5f00::1", "100::1", "", "localhost", "1.2.3", "0x7f.1", "2130706433", "127.1",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    """Nobody's own network, no metadata service, and no way around by another spelling of one."""
    assert not is_public(address)


def test_public_ones_in_six() -> None:
    """What is mapped or translated counts as what it leads to."""
    assert is_public("::ffff:8.8.8.8")
    assert is_public("64:ff9b::808:808")
