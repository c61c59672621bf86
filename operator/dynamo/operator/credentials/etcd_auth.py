"""etcd's users and roles over its JSON gateway: `EtcdAuth`. Loaded by the operator alone, which needs no gRPC for it.

Every call has a deadline and may be repeated: what exists already, or is gone already, is no
error. Nothing of a password gets into an error, a log or a URL.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from dynamo.operator.credentials import etcd_space, etcd_versions
from dynamo.operator.credentials.permissions import EPOCH, Keys

TIMEOUT: Final = 10.0
ROOT: Final = "root"
"""The user and role that etcd wants before it asks anybody to sign in."""
_UNAUTHENTICATED: Final = 16
_VERSION_BYTES: Final = 4096
"""Bytes that are read of a server's version; etcd needs a hundred."""

Answer = dict[str, Any]


class EtcdError(Exception):
    """A call that failed; `reply` has etcd's own words, empty where no endpoint answered."""

    def __init__(self, message: str, reply: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.reply, self.code = reply, code


@dataclass(frozen=True)
class EtcdAdmin:
    """The user that may create users."""

    username: str
    password: str = field(repr=False)


class EtcdAuth:
    """Manages users and roles of one etcd. The session is the caller's.

    Nobody signs in to a server whose version doesn't keep users apart (`etcd_versions`), and nobody is made there.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        endpoints: Sequence[str],
        admin: EtcdAdmin,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._session, self._admin, self._tls = session, admin, tls
        self._endpoints = [e if "://" in e else f"http://{e}" for e in endpoints]
        self._token = ""

    async def set_up(self, epoch: str) -> bool:
        """Make etcd ask for sign-in, where it doesn't; True if it was this call. `epoch` is what a new etcd gets.

        The clients' epoch is written first, since pipelines may only read it. Users of the time before go, since
        anybody could have made them; pipelines get theirs again.
        """
        try:
            await self._sign_in()
        except EtcdError as error:
            if "authentication is not enabled" not in error.reply:
                raise
        else:
            await self._written_once(EPOCH, epoch)
            return False
        await self._written_once(EPOCH, epoch)
        await self._without_others()
        login = {"name": ROOT, "password": self._admin.password}
        if not await self._unless("already exists", "auth/user/add", login):
            await self._call("auth/user/changepw", login)
        await self._unless("already exists", "auth/role/add", {"name": ROOT})
        await self._call("auth/user/grant", {"user": ROOT, "role": ROOT})
        await self._call("auth/enable", {})
        await self._without_others()  # who came while we were at it
        return True

    async def asks_for_sign_in(self) -> bool:
        """Return whether etcd requires authentication."""
        try:
            await self._sign_in()
        except EtcdError as error:
            if "authentication is not enabled" in error.reply:
                return False
            raise
        return True

    async def names(self) -> set[str]:
        """Return the names of all users and roles."""
        users = await self._call("auth/user/list", {})
        roles = await self._call("auth/role/list", {})
        return {*users.get("users", ()), *roles.get("roles", ())}

    async def ensure(self, name: str, password: str, ranges: Sequence[Keys]) -> bool:
        """Create a user, and a role of the same name with rights for `ranges`; False where both existed."""
        await self._keeps_users_apart()
        if name in await self._roles_of(name):
            return False
        await self._unless("already exists", "auth/role/add", {"name": name})
        for keys in ranges:
            await self._call("auth/role/grant", {"name": name, "perm": _permission(keys)})
        await self._unless("already exists", "auth/user/add", {"name": name, "password": password})
        await self._call("auth/user/grant", {"user": name, "role": name})
        return True

    async def make_room(self) -> str:
        """Make room where etcd is full; return what was done, for the log. Only for an etcd of the platform's own."""
        return await etcd_space.made_room(self._call_squeezing, _range)

    async def _call_squeezing(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Call etcd; a history that is dropped already is no error."""
        try:
            return await self._call(path, body)
        except EtcdError as error:
            if "has been compacted" in error.reply:
                return {}
            raise

    async def remove(self, name: str) -> None:
        """Remove the user, then its role, so that what is left after half of it still shows in `names`."""
        await self._unless("not found", "auth/user/delete", {"name": name})
        await self._unless("not found", "auth/role/delete", {"role": name})

    async def _without_others(self) -> None:
        for name in await self.names() - {ROOT}:
            await self.remove(name)

    async def _roles_of(self, name: str) -> Sequence[str]:
        try:
            user = await self._call("auth/user/get", {"name": name})
        except EtcdError as error:
            if "not found" in error.reply:
                return ()
            raise
        return list(user.get("roles", ()))

    async def _written_once(self, key: str, value: str) -> None:
        """Write a key unless it exists; asked first, since a full etcd refuses even a needless write."""
        if (await self._call("kv/range", {"key": _base64(key), "count_only": True})).get("count"):
            return
        absent = {"key": _base64(key), "target": "CREATE", "create_revision": "0"}
        put = {"request_put": {"key": _base64(key), "value": _base64(value)}}
        await self._call("kv/txn", {"compare": [absent], "success": [put]})

    async def _unless(self, harmless: str, path: str, body: Mapping[str, Any]) -> bool:
        """Call etcd; return whether the call did something, since what exists, or is gone, already is no error."""
        try:
            await self._call(path, body)
        except EtcdError as error:
            if harmless in error.reply:
                return False
            raise
        return True

    async def _call(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Call etcd, signed in where it asks for it; a token that it forgot is renewed once."""
        try:
            return await self._ask(path, body, self._token)
        except EtcdError as error:
            if not error.reply:
                self._token = ""
            if error.code != _UNAUTHENTICATED and not any(s in error.reply for s in _STALE):
                raise
        await self._sign_in()
        return await self._ask(path, body, self._token)

    async def _sign_in(self) -> None:
        """Get a token. It names a revision of etcd: a token from before a loss of data makes etcd wait for that."""
        self._token = ""
        await self._keeps_users_apart()
        login = {"name": self._admin.username, "password": self._admin.password}
        self._token = str((await self._ask("auth/authenticate", login, ""))["token"])

    async def _keeps_users_apart(self) -> None:
        """Check the version of every member that answers, since each checks rights. Raises `EtcdError`."""
        versions = await asyncio.gather(*(self._version(endpoint) for endpoint in self._endpoints))
        for endpoint, version in zip(self._endpoints, versions, strict=True):
            if version is not None and (problem := etcd_versions.refused(version)):
                raise EtcdError(f"etcd at {_plain(endpoint)} {problem}")

    async def _version(self, endpoint: str) -> str | None:
        """Return a member's version, empty where its answer has none; None where it doesn't answer."""
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                self._session.get(f"{endpoint}/version", allow_redirects=False, **self._options()) as answer,
            ):
                reply = b""
                async for piece in answer.content.iter_any():
                    reply += piece
                    if len(reply) > _VERSION_BYTES:
                        return ""
                fields = json.loads(reply)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        except (ValueError, RecursionError):
            return ""
        version = fields.get("etcdserver") if isinstance(fields, dict) else None
        return version if isinstance(version, str) else ""

    def _options(self) -> dict[str, Any]:
        return {"ssl": self._tls} if self._tls is not None else {}

    async def _ask(self, path: str, body: Mapping[str, Any], token: str) -> Answer:
        """Ask the endpoints in turn, until one answers."""
        failed = ""
        for endpoint in self._endpoints:
            try:
                async with asyncio.timeout(TIMEOUT):
                    return await self._post(f"{endpoint}/v3/{path}", body, token)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed = f"etcd at {_plain(endpoint)} does not answer: {type(error).__name__}"
        raise EtcdError(failed or "no etcd endpoint is configured")

    async def _post(self, url: str, body: Mapping[str, Any], token: str) -> Answer:
        headers = {"Authorization": token} if token else {}
        async with self._session.post(url, json=body, headers=headers, **self._options()) as answer:
            try:
                fields = await answer.json(content_type=None)
            except ValueError:
                fields = None
            if answer.status >= 400 or not isinstance(fields, dict):
                raise _refusal(url, answer.status, fields)
            return fields


_STALE: Final = ("user name is empty", "revision of auth store is old", "invalid auth token")


def _refusal(url: str, status: int, body: Any) -> EtcdError:
    fields = body if isinstance(body, dict) else {}
    reply = str(fields.get("message") or fields.get("error") or f"HTTP {status}")
    code = fields.get("code")
    return EtcdError(f"etcd at {_plain(url)} answered: {reply}", reply, code if isinstance(code, int) else 0)


def _plain(url: str) -> str:
    """Return host and port, without a user or password in front of them."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def _permission(keys: Keys) -> Answer:
    return {"permType": "READWRITE" if keys.write else "READ", **_range(keys.prefix)}


def _range(prefix: str) -> Answer:
    return {"key": _base64(prefix), "range_end": _base64(Keys(prefix, write=False).end)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
