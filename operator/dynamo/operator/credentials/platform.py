"""What the platform itself signs in with: `Platform` reads its Secrets, and makes those that nobody made.

In the operator's own namespace, by name. They are read again after a minute, so that new keys
reach every pipeline without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import secrets
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dynamo.operator.credentials import nats_keys
from dynamo.operator.credentials.etcd_auth import ROOT, EtcdAdmin
from dynamo.operator.credentials.nats_keys import KeysError, NatsIssuer
from dynamo.operator.credentials.secret import Data, Material, data_in
from dynamo.operator.kube.client import Api
from dynamo.operator.kube.errors import ApiError
from dynamo.operator.kube.resources import SECRETS
from dynamo.operator.manifests.naming import MANAGER
from dynamo.operator.manifests.pod import NATS_FILES
from dynamo.operator.settings import Settings, SignIn

log = logging.getLogger(__name__)

FRESH_SECONDS: Final = 60.0
_CERTIFICATES: Final = ("ca.crt", "tls.crt", "tls.key")


class PlatformError(Exception):
    """Raised when the platform's own credentials can't be used; the message says what to do."""


class Platform:
    """Reads the Secrets that the settings name."""

    def __init__(self, api: Api, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._api, self._settings, self._clock = api, settings, clock
        self._material: Material | None = None
        self._read_at = 0.0
        self._lock = asyncio.Lock()

    async def material(self) -> Material:
        """Return what the Secrets hold, at most a minute old. Raises `PlatformError`, `ApiError`."""
        async with self._lock:
            if self._material is None or self._clock() - self._read_at >= FRESH_SECONDS:
                self._material = await self._read()
                self._read_at = self._clock()
            return self._material

    async def _read(self) -> Material:
        etcd, nats = self._settings.etcd_sign_in, self._settings.nats_sign_in
        admin = await self._secret(etcd, new_etcd_login)
        keys = await self._secret(nats, new_nats_keys)
        try:
            issuer = NatsIssuer.of(keys) if nats_keys.SIGNING in keys else None
        except (KeysError, KeyError) as error:
            raise PlatformError(f"Secret {self._place(nats.secret)}: {error}") from None
        copied = {} if issuer else {file: keys[file] for file in NATS_FILES if file in keys}
        if nats.secret and issuer is None and not copied:
            raise PlatformError(f"Secret {self._place(nats.secret)} has none of {', '.join(_NATS_KEYS)}")
        return Material(
            etcd_admin=self._admin(admin) if etcd.secret else None,
            nats_issuer=issuer,
            etcd_files=await self._certificates(etcd),
            nats_files=copied | await self._certificates(nats),
        )

    def _admin(self, data: Mapping[str, bytes]) -> EtcdAdmin:
        login = {key: data.get(key, b"").decode("utf-8", "replace").strip() for key in ("username", "password")}
        if not all(login.values()):
            name = self._place(self._settings.etcd_sign_in.secret)
            raise PlatformError(f"Secret {name} needs username and password of an etcd user that may create users")
        return EtcdAdmin(**login)

    async def _certificates(self, given: SignIn) -> Data:
        """Return what proves the server to pipelines; with our own server, the Secret's certificate is the server's."""
        if not given.tls_secret:
            return {}
        data = await self._data(given.tls_secret)
        if data is None:
            raise PlatformError(f"Secret {self._place(given.tls_secret)} is missing: create it with ca.crt")
        return {file: data[file] for file in _CERTIFICATES[: 1 if given.own_server else 3] if file in data}

    async def _secret(self, given: SignIn, make: Callable[[], Data]) -> Data:
        if not given.secret:
            return {}
        data = await self._data(given.secret)
        if data is None and given.make_secret:
            data = await self._made(given.secret, make())
        if data is None:
            raise PlatformError(
                f"Secret {self._place(given.secret)} is missing: create it (see charts/dynamo-platform/README.md)"
            )
        return data

    async def _data(self, name: str) -> Data | None:
        secret = await self._api.get(SECRETS, self._settings.own_namespace, name)
        return None if secret is None else data_in(secret)

    async def _made(self, name: str, data: Data) -> Data | None:
        try:
            await self._api.create(SECRETS, self._settings.own_namespace, platform_secret(name, data))
        except ApiError as error:
            if error.code != 409:
                raise
            return await self._data(name)
        log.info("created the Secret %s with new keys", self._place(name))
        return data

    def _place(self, name: str) -> str:
        return f"{self._settings.own_namespace}/{name}"


_NATS_KEYS: Final = (nats_keys.SIGNING, *NATS_FILES[:5])


def new_etcd_login() -> Data:
    """Return a login for an etcd that is to be set up."""
    return {"username": ROOT.encode(), "password": secrets.token_urlsafe(32).encode()}


def new_nats_keys() -> Data:
    """Return keys for a NATS server that is to be set up."""
    return nats_keys.new_platform(lambda: os.urandom(32), int(time.time()))


def platform_secret(name: str, data: Mapping[str, bytes]) -> dict[str, object]:
    """Return it as a manifest without an owner: it has to outlive the release, as etcd's claim does."""
    labels = {"app.kubernetes.io/part-of": "dynamo", "app.kubernetes.io/managed-by": MANAGER}
    texts = {key: base64.b64encode(value).decode() for key, value in sorted(data.items())}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": labels},
        "type": "Opaque",
        "data": texts,
    }


def tls_context(files: Mapping[str, bytes]) -> ssl.SSLContext | None:
    """Return TLS settings for our own calls to etcd; None where no certificates are given."""
    if not files:
        return None
    try:
        context = ssl.create_default_context(cadata=files["ca.crt"].decode() if "ca.crt" in files else None)
        if "tls.crt" in files and "tls.key" in files:
            with tempfile.TemporaryDirectory() as folder:  # the ssl module takes certificates from files only
                for file in ("tls.crt", "tls.key"):
                    Path(folder, file).write_bytes(files[file])
                context.load_cert_chain(Path(folder, "tls.crt"), Path(folder, "tls.key"))
    except (ssl.SSLError, UnicodeDecodeError, OSError) as error:
        raise PlatformError(f"the certificates for etcd can't be used: {type(error).__name__}") from None
    return context
