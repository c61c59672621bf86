"""The runtime's configuration from the environment."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dynamo.runtime.config import EtcdConfig, NatsConfig, RuntimeConfig
from dynamo.runtime.errors import InvalidArgument


def test_defaults() -> None:
    """An empty environment means local servers."""
    config = RuntimeConfig.from_env({})
    assert config == RuntimeConfig()
    assert config.etcd.endpoints == ("http://localhost:2379",)
    assert config.nats.servers == ("nats://localhost:4222",)
    assert config.etcd.lease_ttl == 10


def test_everything_is_read(tmp_path: Path) -> None:
    """Every variable lands in its field; spaces and empty values don't matter."""
    file = tmp_path / "file"
    file.write_text("x")
    here = str(file)
    env = {
        "ETCD_ENDPOINTS": " http://a:1, https://b:2 ,c:3,", "ETCD_AUTH_USERNAME": "u", "ETCD_AUTH_PASSWORD": "p",
        "ETCD_AUTH_CA": here, "ETCD_AUTH_CLIENT_CERT": here, "ETCD_AUTH_CLIENT_KEY": here, "ETCD_LEASE_TTL": "3.5",
        "NATS_SERVER": "nats://n:4222,tls://m", "NATS_AUTH_USERNAME": "u", "NATS_AUTH_PASSWORD": "p",
        "NATS_AUTH_TOKEN": "t", "NATS_AUTH_NKEY": here, "NATS_AUTH_CREDENTIALS_FILE": here, "NATS_TLS_CA": here,
        "NATS_TLS_CERT": here, "NATS_TLS_KEY": here, "DYN_DISCOVERY_BACKEND": "mem",
        "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": "7", "POD_NAME": "w-0", "UNRELATED": "x",
        "DYN_DIRECT_FRAMES": "off",
    }  # fmt: skip
    assert RuntimeConfig.from_env(env) == RuntimeConfig(
        EtcdConfig(("http://a:1", "https://b:2", "c:3"), "u", "p", here, here, here, 3.5),
        NatsConfig(("nats://n:4222", "tls://m"), "u", "p", "t", here, here, here, here, here),
        "mem",
        7.0,
        False,
        "w-0",
    )
    assert RuntimeConfig.from_env({}).host == socket.gethostname()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ETCD_ENDPOINTS", "ftp://a:1"),
        ("ETCD_ENDPOINTS", "http://a:port"),
        ("ETCD_ENDPOINTS", "http://a:99999"),
        ("ETCD_ENDPOINTS", "http://:2379"),
        ("ETCD_ENDPOINTS", ","),
        ("ETCD_LEASE_TTL", "soon"),
        ("ETCD_LEASE_TTL", "0.5"),
        ("ETCD_LEASE_TTL", "nan"),
        ("ETCD_LEASE_TTL", "inf"),
        ("ETCD_AUTH_USERNAME", "alone"),
        ("ETCD_AUTH_PASSWORD", "alone"),
        ("ETCD_AUTH_CA", "/nowhere/ca.pem"),
        ("ETCD_AUTH_CLIENT_CERT", "/nowhere/cert.pem"),
        ("NATS_SERVER", "http://n:4222"),
        ("NATS_AUTH_PASSWORD", "alone"),
        ("NATS_AUTH_CREDENTIALS_FILE", "/nowhere/creds"),
        ("DYN_DISCOVERY_BACKEND", "zookeeper"),
        ("DYN_DIRECT_FRAMES", "perhaps"),
        ("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "-1"),
    ],
)
def test_a_malformed_value_names_its_variable(name: str, value: str) -> None:
    """One sentence that names the variable."""
    with pytest.raises(InvalidArgument, match=name):
        RuntimeConfig.from_env({name: value})


def test_no_secret_is_shown() -> None:
    """Neither a representation nor an error holds a password or token."""
    env = {"ETCD_AUTH_USERNAME": "u", "ETCD_AUTH_PASSWORD": "s3cret", "NATS_AUTH_TOKEN": "s3cret"}
    assert "s3cret" not in repr(RuntimeConfig.from_env(env))
    with pytest.raises(InvalidArgument) as caught:
        RuntimeConfig.from_env({"NATS_SERVER": "http://u:s3cret@h:1"})
    assert "s3cret" not in caught.value.message


def test_a_folder_of_files(tmp_path: Path) -> None:
    """As a Secret is mounted: read when asked for, by the names of its keys; what is set by itself wins."""
    for name in ("username", "password", "token", "nkey", "user.creds", "ca.crt", "tls.crt", "tls.key"):
        (tmp_path / name).write_text(f"{name}\n")
    env = {"ETCD_AUTH_DIR": str(tmp_path), "NATS_AUTH_DIR": str(tmp_path), "NATS_AUTH_TOKEN": "mine"}
    config = RuntimeConfig.from_env(env)
    assert (config.etcd.username, config.nats.credentials_file) == (None, None)
    etcd, nats = config.etcd.with_files(), config.nats.with_files()
    assert (etcd.username, etcd.password, etcd.ca) == ("username", "password", str(tmp_path / "ca.crt"))
    assert (etcd.client_cert, etcd.client_key) == (str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    assert (nats.username, nats.token, nats.credentials_file) == ("username", "mine", str(tmp_path / "user.creds"))
    assert (nats.nkey, nats.tls_ca, nats.tls_key) == (
        str(tmp_path / "nkey"),
        str(tmp_path / "ca.crt"),
        str(tmp_path / "tls.key"),
    )
    (tmp_path / "password").write_text("another")
    (tmp_path / "ca.crt").unlink()
    assert (config.etcd.with_files().password, config.etcd.with_files().ca) == ("another", None)
    assert "another" not in repr(config.etcd.with_files())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Said at the start, and by name when a file turns unreadable later."""
    with pytest.raises(InvalidArgument, match="ETCD_AUTH_DIR: there is no folder"):
        RuntimeConfig.from_env({"ETCD_AUTH_DIR": str(tmp_path / "gone")})
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgument, match=r"NATS_AUTH_DIR: .*password can't be read"):
        RuntimeConfig.from_env({"NATS_AUTH_DIR": str(tmp_path)}).nats.with_files()


@pytest.mark.parametrize(
    ("variable", "option", "direct"), [("on", "on", True), ("off", "on", False), ("", "off", False)]
)
def test_direct_frames_are_off_where_anything_says_so(variable: str, option: str, direct: bool) -> None:
    """The variable holds for programs that have no such option, too."""
    config = RuntimeConfig.from_env({"DYN_DIRECT_FRAMES": variable}).with_options("mem", option)
    assert (config.direct_frames, config.discovery_backend) == (direct, "mem")
