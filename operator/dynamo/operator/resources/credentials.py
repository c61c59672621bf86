"""How a container gets the credentials of etcd and NATS: by reference to a Secret, never by value.

Texts (user, password, token) become variables, what the clients read as files (certificates,
nkey, credentials) is mounted. Which keys a Secret has, the reconciler says; a key that isn't
there is left out, because a variable that names a missing file would end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dynamo.operator.resources.site import Scene, SecretKeys

_ROOT = "/etc/dynamo/credentials"

_ETCD_TEXTS = {"username": "ETCD_AUTH_USERNAME", "password": "ETCD_AUTH_PASSWORD"}
_ETCD_FILES = {"ca.crt": "ETCD_AUTH_CA", "tls.crt": "ETCD_AUTH_CLIENT_CERT", "tls.key": "ETCD_AUTH_CLIENT_KEY"}
_NATS_TEXTS = {"username": "NATS_AUTH_USERNAME", "password": "NATS_AUTH_PASSWORD", "token": "NATS_AUTH_TOKEN"}
_NATS_FILES = {
    "nkey": "NATS_AUTH_NKEY",
    "user.creds": "NATS_AUTH_CREDENTIALS_FILE",
    "ca.crt": "NATS_TLS_CA",
    "tls.crt": "NATS_TLS_CERT",
    "tls.key": "NATS_TLS_KEY",
}


@dataclass(frozen=True)
class Credentials:
    """What a container needs for them."""

    env: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


def credentials(scene: Scene) -> Credentials:
    """For both servers; empty where they need none."""
    runtime = scene.pipeline.spec.runtime
    etcd = _of("etcd", scene.site.etcd or _named(runtime.etcd.secret), _ETCD_TEXTS, _ETCD_FILES)
    nats = _of("nats", scene.site.nats or _named(runtime.nats.secret), _NATS_TEXTS, _NATS_FILES)
    return Credentials(etcd.env + nats.env, etcd.volumes + nats.volumes, etcd.mounts + nats.mounts)


def _named(secret: str | None) -> SecretKeys | None:
    """A Secret that the pipeline names and nobody could look into: user and password are what it most likely has."""
    return SecretKeys(secret, frozenset({"username", "password"})) if secret else None


def _of(server: str, secret: SecretKeys | None, texts: dict[str, str], files: dict[str, str]) -> Credentials:
    if secret is None:
        return Credentials()
    env = tuple(_variables(server, secret, texts, files))
    held = [key for key in files if key in secret.keys]
    if not held:
        return Credentials(env)
    name = f"{server}-credentials"
    source = {"secretName": secret.name, "items": [{"key": k, "path": k} for k in held], "defaultMode": 0o440}
    mount = {"name": name, "mountPath": f"{_ROOT}/{server}", "readOnly": True}
    return Credentials(env, ({"name": name, "secret": source},), (mount,))


def _variables(
    server: str, secret: SecretKeys, texts: dict[str, str], files: dict[str, str]
) -> Iterator[dict[str, Any]]:
    for key, variable in texts.items():
        if key in secret.keys:
            yield {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": key}}}
    for key, variable in files.items():
        if key in secret.keys:
            yield {"name": variable, "value": f"{_ROOT}/{server}/{key}"}
