"""etcd's users and roles over its JSON gateway: `EtcdAuth`. Loaded by the operator alone, which needs no gRPC for it.

Every call has a deadline and may be repeated: what exists already, or is gone already, is no
error. Nothing of a password gets into an error, a log or a URL.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from dynamo.operator.credentials.rights import EPOCH, Keys

TIMEOUT: Final = 10.0
ROOT: Final = "root"
"""The user and role that etcd wants before it asks anybody to sign in."""
_UNAUTHENTICATED: Final = 16

Answer = dict[str, Any]


class EtcdError(Exception):
    """A call that failed; `said` has etcd's own words, empty where none of the endpoints answered."""

    def __init__(self, message: str, said: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.said, self.code = said, code


@dataclass(frozen=True)
class EtcdAdmin:
    """Who may make users."""

    username: str
    password: str = field(repr=False)


class EtcdAuth:
    """One etcd. The session is the caller's."""

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

        The clients' epoch is written first, since pipelines may only read it.
        """
        try:
            await self._sign_in()
        except EtcdError as error:
            if "authentication is not enabled" not in error.said:
                raise
        else:
            await self._written_once(EPOCH, epoch)
            return False
        await self._written_once(EPOCH, epoch)
        login = {"name": ROOT, "password": self._admin.password}
        if not await self._unless("already exists", "auth/user/add", login):
            await self._call("auth/user/changepw", login)
        await self._unless("already exists", "auth/role/add", {"name": ROOT})
        await self._call("auth/user/grant", {"user": ROOT, "role": ROOT})
        await self._call("auth/enable", {})
        return True

    async def asks_for_sign_in(self) -> bool:
        """Whether etcd lets in only who it knows."""
        try:
            await self._sign_in()
        except EtcdError as error:
            if "authentication is not enabled" in error.said:
                return False
            raise
        return True

    async def names(self) -> set[str]:
        """Of all users and roles."""
        users = await self._call("auth/user/list", {})
        roles = await self._call("auth/role/list", {})
        return {*users.get("users", ()), *roles.get("roles", ())}

    async def ensure(self, name: str, password: str, ranges: Sequence[Keys]) -> bool:
        """A user, and a role of the same name with rights for `ranges`; False where both were there."""
        if name in await self._roles_of(name):
            return False
        await self._unless("already exists", "auth/role/add", {"name": name})
        for one in ranges:
            await self._call("auth/role/grant", {"name": name, "perm": _permission(one)})
        await self._unless("already exists", "auth/user/add", {"name": name, "password": password})
        await self._call("auth/user/grant", {"user": name, "role": name})
        return True

    async def remove(self, name: str) -> None:
        """The user, then its role, so that what is left after half of it still shows in `names`."""
        await self._unless("not found", "auth/user/delete", {"name": name})
        await self._unless("not found", "auth/role/delete", {"role": name})

    async def _roles_of(self, name: str) -> Sequence[str]:
        try:
            found = await self._call("auth/user/get", {"name": name})
        except EtcdError as error:
            if "not found" in error.said:
                return ()
            raise
        return list(found.get("roles", ()))

    async def _written_once(self, key: str, value: str) -> None:
        absent = {"key": _base64(key), "target": "CREATE", "create_revision": "0"}
        put = {"request_put": {"key": _base64(key), "value": _base64(value)}}
        await self._call("kv/txn", {"compare": [absent], "success": [put]})

    async def _unless(self, harmless: str, path: str, body: Mapping[str, Any]) -> bool:
        """Whether the call did something: what is there, or gone, already is no error."""
        try:
            await self._call(path, body)
        except EtcdError as error:
            if harmless in error.said:
                return False
            raise
        return True

    async def _call(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Signed in where etcd asks for it; a token that it forgot is renewed once."""
        try:
            return await self._ask(path, body, self._token)
        except EtcdError as error:
            if not error.said:
                self._token = ""
            if error.code != _UNAUTHENTICATED and not any(s in error.said for s in _STALE):
                raise
        await self._sign_in()
        return await self._ask(path, body, self._token)

    async def _sign_in(self) -> None:
        """A token names a place in etcd's history: one of before its data was lost makes etcd wait for it."""
        self._token = ""
        login = {"name": self._admin.username, "password": self._admin.password}
        self._token = str((await self._ask("auth/authenticate", login, ""))["token"])

    async def _ask(self, path: str, body: Mapping[str, Any], token: str) -> Answer:
        """Of the endpoints in turn, until one answers."""
        failed = ""
        for endpoint in self._endpoints:
            try:
                async with asyncio.timeout(TIMEOUT):
                    return await self._post(f"{endpoint}/v3/{path}", body, token)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failed = f"etcd at {_plain(endpoint)} does not answer: {type(error).__name__}"
        raise EtcdError(failed or "no etcd is named")

    async def _post(self, url: str, body: Mapping[str, Any], token: str) -> Answer:
        headers = {"Authorization": token} if token else {}
        options: dict[str, Any] = {"ssl": self._tls} if self._tls is not None else {}
        async with self._session.post(url, json=body, headers=headers, **options) as answer:
            try:
                found = await answer.json(content_type=None)
            except ValueError:
                found = None
            if answer.status >= 400 or not isinstance(found, dict):
                raise _refusal(url, answer.status, found)
            return found


_STALE: Final = ("user name is empty", "revision of auth store is old", "invalid auth token")


def _refusal(url: str, status: int, found: Any) -> EtcdError:
    fields = found if isinstance(found, dict) else {}
    said = str(fields.get("message") or fields.get("error") or f"HTTP {status}")
    code = fields.get("code")
    return EtcdError(f"etcd at {_plain(url)} says: {said}", said, code if isinstance(code, int) else 0)


def _plain(url: str) -> str:
    """Host and port, without a user or password in front of them."""
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def _permission(one: Keys) -> Answer:
    kind = "READWRITE" if one.write else "READ"
    return {"permType": kind, "key": _base64(one.prefix), "range_end": _base64(one.end)}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
