"""How a container gets the credentials of etcd and NATS: a folder of files out of a Secret, never a value.

The runtime reads the folder at each sign-in (`ETCD_AUTH_DIR`, `NATS_AUTH_DIR`) and knows the
files by name, so a template doesn't depend on which of them there are, and new contents need
no new pod. What the platform gives stands in the pipeline's own Secret, under keys that begin
with the server's name; a Secret that the pipeline names is mounted as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import ClusterSettings, RenderContext

_ROOT: Final = "/etc/dynamo/credentials"
ETCD_FILES: Final = ("username", "password", "ca.crt", "tls.crt", "tls.key")
NATS_FILES: Final = ("username", "password", "token", "nkey", "user.creds", "ca.crt", "tls.crt", "tls.key")
"""What the runtime looks for; a test holds both together."""
_MODE: Final = 0o440


@dataclass(frozen=True)
class Credentials:
    """Parts of a container that give it the credentials."""

    env: tuple[dict[str, Any], ...] = ()
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()


def credentials(context: RenderContext) -> Credentials:
    """Return them for both servers; empty where they need none."""
    runtime = context.pipeline.spec.runtime
    etcd = _of("etcd", "ETCD_AUTH_DIR", _source(context, "etcd", runtime.etcd.secret, ETCD_FILES))
    nats = _of("nats", "NATS_AUTH_DIR", _source(context, "nats", runtime.nats.secret, NATS_FILES))
    return Credentials(etcd.env + nats.env, etcd.volumes + nats.volumes, etcd.mounts + nats.mounts)


def given(pipeline: DynamoPipeline, cluster: ClusterSettings) -> frozenset[str]:
    """Return the servers for which the platform gives credentials: those that the pipeline doesn't name itself."""
    runtime = pipeline.spec.runtime
    etcd = cluster.etcd_sign_in and not (runtime.etcd.endpoints or runtime.etcd.secret)
    nats = cluster.nats_sign_in and not (runtime.nats.url or runtime.nats.secret)
    return frozenset(name for name, yes in (("etcd", etcd), ("nats", nats)) if yes)


def secret_key(server: str, file: str) -> str:
    """Return where a file of a server stands in the pipeline's own Secret."""
    return f"{server}.{file}"


def _source(context: RenderContext, server: str, named: str | None, files: Iterable[str]) -> dict[str, Any] | None:
    if named:
        return {"secretName": named, "defaultMode": _MODE}
    if server not in given(context.pipeline, context.cluster):
        return None
    items = [{"key": secret_key(server, file), "path": file} for file in files]
    name = naming.credentials_name(context.pipeline.name)
    return {"secretName": name, "items": items, "defaultMode": _MODE, "optional": True}


def _of(server: str, variable: str, source: dict[str, Any] | None) -> Credentials:
    if source is None:
        return Credentials()
    name, folder = f"{server}-credentials", f"{_ROOT}/{server}"
    mount = {"name": name, "mountPath": folder, "readOnly": True}
    return Credentials(({"name": variable, "value": folder},), ({"name": name, "secret": source},), (mount,))
