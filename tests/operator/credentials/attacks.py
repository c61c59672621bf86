"""What a hostile tenant, and somebody without any user, try on an etcd that asks for sign-in.

Two tenants with the users and rights that the operator gives. `test_attacks.py` makes the attacks on PyPI's old etcd,
where they succeed and where the operator therefore signs nobody in; `e2e/etcd` makes them on the chart's, and
`e2e/scenarios/tenancy/test_tenants.py` on an installed platform's, where none does.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import httpx

from dynamo.operator.credentials import permissions
from dynamo.operator.credentials.etcd_auth import EtcdAdmin, EtcdAuth

RECORD: Final = "the victim's record"
SECRET: Final = "what only the victim may read"
EVERYTHING: Final = {"key": "AA==", "range_end": "AA=="}
WATCH_SECONDS: Final = 3.0

Body = Mapping[str, Any]


def b64(text: str) -> str:
    """As etcd's gateway has keys and values."""
    return base64.b64encode(text.encode()).decode()


@dataclass
class Stage:
    """An etcd with two tenants, by their Dynamo namespaces; `tokens` by name, the stranger has none."""

    url: str
    client: httpx.Client
    victim: str = "tenantb_pipe"
    tenant: str = "tenanta_pipe"
    tokens: dict[str, str] = field(default_factory=dict)
    lease: str = ""
    """The victim's, under which its record stands."""

    def of_victim(self, name: str = "record") -> str:
        """A key of the victim's."""
        return f"dynamo/instances/{self.victim}/attacked/{name}"

    def own(self) -> str:
        """A key that the attacker may write."""
        return f"dynamo/instances/{self.tenant}/attacker/x"

    def post(self, path: str, body: Body, who: str = "root") -> httpx.Response:
        """A call by one of them."""
        token = self.tokens.get(who)
        headers = {"Authorization": token} if token else {}
        return self.client.post(f"{self.url}/v3/{path}", json=body, headers=headers)

    def sign_in(self, who: str, name: str, password: str) -> None:
        """`who` calls with a token from now on."""
        answer = self.post("auth/authenticate", {"name": name, "password": password}, "nobody")
        self.tokens[who] = answer.raise_for_status().json()["token"]

    def register(self) -> None:
        """The victim's record, as a worker writes its own."""
        grant = self.post("lease/grant", {"TTL": "3600"}, "victim").raise_for_status()
        self.lease = grant.json()["ID"]
        put = {"key": b64(self.of_victim()), "value": b64(RECORD), "lease": self.lease}
        self.post("kv/put", put, "victim").raise_for_status()

    def seen(self, name: str = "record") -> str:
        """What stands under a key of the victim's, as it reads it itself."""
        answer = self.post("kv/range", {"key": b64(self.of_victim(name))}, "victim").raise_for_status()
        pairs = answer.json().get("kvs", [])
        return base64.b64decode(pairs[0].get("value", "")).decode() if pairs else ""


@contextmanager
def staged(url: str) -> Iterator[Stage]:
    """Both tenants have the operator's users; the victim has registered."""
    with httpx.Client(timeout=20) as client:
        stage = Stage(url, client)

        async def set_up() -> None:
            async with aiohttp.ClientSession() as session:
                auth = EtcdAuth(session, [url], EtcdAdmin("root", "secret"))
                await auth.set_up("the epoch")
                await auth.ensure("victim", "p-victim", permissions.keys(stage.victim))
                await auth.ensure("tenant", "p-tenant", permissions.keys(stage.tenant))

        asyncio.run(set_up())
        stage.sign_in("root", "root", "secret")
        for who in ("victim", "tenant"):
            stage.sign_in(who, who, f"p-{who}")
        stage.register()
        yield stage


@dataclass(frozen=True)
class Attack:
    """One try; `succeeds` is true when it got what it wanted."""

    what: str
    who: str
    tried: Callable[[Stage, str], bool]
    on_old: bool = True
    """It succeeds on etcd 3.5.1."""

    @property
    def name(self) -> str:
        """Who does what."""
        return f"{self.who} {self.what}"

    def succeeds(self, stage: Stage) -> bool:
        """Make it."""
        return self.tried(stage, self.who)


def came_true(stage: Stage, attacks: tuple[Attack, ...]) -> dict[str, bool]:
    """All of them in order: whether each got what it wanted."""
    return {attack.name: attack.succeeds(stage) for attack in attacks}


def _call(path: str, body: Body | Callable[[Stage], Body], says: str = "") -> Callable[[Stage, str], bool]:
    """Whether etcd does as it is asked; `says` is what the answer must hold."""

    def carried_out(stage: Stage, who: str) -> bool:
        answer = stage.post(path, body(stage) if callable(body) else body, who)
        return answer.status_code == 200 and (not says or b64(says) in answer.text)

    return carried_out


def _nested(operation: Callable[[Stage], Body], depth: int = 1, branch: str = "success") -> Callable[[Stage], Body]:
    """An operation in a transaction, within `depth` others."""

    def body(stage: Stage) -> Body:
        never = {"key": b64(stage.own()), "target": "VERSION", "version": "77"}
        table: Body = {branch: [operation(stage)], "compare": [] if branch == "success" else [never]}
        for _ in range(depth):
            table = {"success": [{"request_txn": table}]}
        return table

    return body


def _read(stage: Stage) -> Body:
    return {"request_range": {"key": b64(stage.of_victim())}}


def _write(stage: Stage) -> Body:
    return {"request_put": {"key": b64(stage.of_victim("rogue")), "value": b64("rogue")}}


def _write_epoch(stage: Stage) -> Body:
    return {"request_put": {"key": b64(permissions.EPOCH), "value": b64("the epoch")}}


def _delete(stage: Stage) -> Body:
    return {"request_delete_range": {"key": b64(stage.of_victim("none")), "range_end": b64(stage.of_victim("nonf"))}}


def _read_before(stage: Stage) -> Body:
    return {"request_put": {"key": b64(stage.of_victim()), "value": b64(RECORD), "prev_kv": True}}


def _leased(stage: Stage) -> Body:
    """The attacker's key on the victim's lease: from then on the victim could not renew it."""
    return {"request_put": {"key": b64(stage.own()), "value": b64("x"), "lease": stage.lease}}


def _compared(stage: Stage) -> Body:
    """Whether a value is greater than another: bit by bit, that reads it."""
    asked = {"key": b64(stage.of_victim()), "target": "VALUE", "result": "GREATER", "value": "AA=="}
    return {"request_txn": {"compare": [asked]}}


def _watched(key: Callable[[Stage], str], end: str) -> Callable[[Stage, str], bool]:
    """Whether a watch of these keys brings what the victim writes while it is open."""

    def leaks(stage: Stage, who: str) -> bool:
        headers = {"Authorization": stage.tokens[who]} if who in stage.tokens else {}
        body = {"create_request": {"key": b64(key(stage)), "range_end": b64(end)}}
        deadline, written = time.monotonic() + WATCH_SECONDS, False
        url = f"{stage.url}/v3/watch"
        try:
            with stage.client.stream("POST", url, json=body, headers=headers, timeout=WATCH_SECONDS) as answer:
                for piece in answer.iter_text():
                    if b64(SECRET) in piece:
                        return True
                    if not written:
                        put = {"key": b64(stage.of_victim("secret")), "value": b64(SECRET)}
                        stage.post("kv/put", put, "victim").raise_for_status()
                        written = True
                    if time.monotonic() > deadline:
                        return False
        except httpx.TimeoutException:
            return False
        return False

    return leaks


def _tenant(what: str, tried: Callable[[Stage, str], bool], *, on_old: bool = True) -> Attack:
    return Attack(what, "tenant", tried, on_old)


def _nobody(what: str, tried: Callable[[Stage, str], bool], *, on_old: bool = True) -> Attack:
    return Attack(what, "nobody", tried, on_old)


def _txn(what: str, operation: Callable[[Stage], Body], says: str = "", **how: Any) -> Attack:
    return _tenant(what, _call("kv/txn", _nested(operation, **how), says))


def _plain(what: str, path: str, body: Body | Callable[[Stage], Body]) -> Attack:
    """What has been refused in every version."""
    return _tenant(what, _call(path, body), on_old=False)


KEYS: Final = (
    _plain("reads a key", "kv/range", lambda stage: {"key": b64(stage.of_victim())}),
    _plain("reads all keys", "kv/range", EVERYTHING),
    _plain("reads all names", "kv/range", {**EVERYTHING, "keys_only": True}),
    _plain("counts all keys", "kv/range", {**EVERYTHING, "count_only": True}),
    _plain("writes a key", "kv/put", lambda stage: {"key": b64(stage.of_victim()), "value": "eA=="}),
    _plain("deletes a key", "kv/deleterange", lambda stage: {"key": b64(stage.of_victim())}),
    _plain("deletes all keys", "kv/deleterange", EVERYTHING),
    _plain("writes the epoch", "kv/put", {"key": b64(permissions.EPOCH), "value": "eA=="}),
    _plain("reads in a transaction", "kv/txn", _nested(_read, depth=0)),
    _txn("reads in a nested transaction", _read, RECORD),
    _txn("reads two transactions deep", _read, RECORD, depth=2),
    _txn("reads in the other branch of a nested one", _read, RECORD, branch="failure"),
    _txn("reads everything in a nested one", lambda stage: {"request_range": EVERYTHING}, RECORD),
    _txn("writes in a nested one", _write),
    _txn("writes the epoch in a nested one", _write_epoch),
    _txn("deletes in a nested one", _delete),
    _txn("reads the value before in a nested one", _read_before, RECORD),
    _txn("compares a value in a nested one", _compared, depth=0),
    _txn("puts its key on a lease in a nested one", _leased),
    _tenant("puts its key on a lease", _call("kv/put", lambda stage: _leased(stage)["request_put"])),
    _tenant("watches from the epoch on", _watched(lambda stage: permissions.EPOCH, "\0")),
    _tenant("watches from its own keys on", _watched(lambda stage: f"dynamo/instances/{stage.tenant}/", "\0")),
    _tenant("watches from the clients of all on", _watched(lambda stage: "dynamo/clients/_all/", "\0")),
    _tenant("watches a prefix", _watched(lambda stage: "dynamo/instances/", "dynamo/instances0"), on_old=False),
    _tenant("watches everything", _watched(lambda stage: "\0", "\0"), on_old=False),
)
"""At the keys of the victim, by a tenant who has a user."""


def _server(who: str, revision: int) -> Iterator[Attack]:
    """At what only root may do, by somebody else."""
    keys = _call("lease/timetolive", lambda stage: {"ID": stage.lease, "keys": True}, "attacked")
    yield Attack("reads a lease's keys", who, keys, on_old=False)
    yield Attack("lists leases", who, _call("lease/leases", {}))
    yield Attack("renews a lease", who, lambda stage, by: '"TTL"' in _renewed(stage, by))
    yield Attack("compacts", who, _call("kv/compaction", {"revision": f"{revision}"}))
    for what, path, body in _ROOTS:
        yield Attack(what, who, _call(path, body), on_old=False)


def _renewed(stage: Stage, who: str) -> str:
    return stage.post("lease/keepalive", {"ID": stage.lease}, who).text


_ROOTS: Final[tuple[tuple[str, str, Body], ...]] = (
    ("lists users", "auth/user/list", {}),
    ("lists roles", "auth/role/list", {}),
    ("makes a user", "auth/user/add", {"name": "rogue", "password": "x"}),
    ("deletes a user", "auth/user/delete", {"name": "victim"}),
    ("changes root's password", "auth/user/changepw", {"name": "root", "password": "x"}),
    ("becomes root", "auth/user/grant", {"user": "tenant", "role": "root"}),
    ("widens its role", "auth/role/grant", {"name": "tenant", "perm": {"permType": "READWRITE", **EVERYTHING}}),
    ("turns sign-in off", "auth/disable", {}),
    ("defragments", "maintenance/defragment", {}),
    ("reads a digest of all", "maintenance/hash", {}),
    ("adds a member", "cluster/member/add", {"peerURLs": ["http://127.0.0.1:1"]}),
    ("takes a snapshot", "maintenance/snapshot", {}),
)


def _alarm(kind: str) -> Callable[[Stage, str], bool]:
    """One that nobody has a reason for: until root takes it back, nobody's key is written."""
    return _call("maintenance/alarm", {"action": "ACTIVATE", "alarm": kind, "memberID": "0"})


SERVER: Final = (*_server("nobody", 2), *_server("tenant", 3))
ALARMS: Final = (
    _nobody("grants a lease", _call("lease/grant", {"TTL": "600"})),
    _tenant("raises the alarm NOSPACE", _alarm("NOSPACE")),
    _nobody("raises the alarm NOSPACE", _alarm("NOSPACE")),
    _nobody("revokes a lease", _call("lease/revoke", lambda stage: {"ID": stage.lease})),
    _nobody("lists users then", _call("auth/user/list", {})),
    _nobody("turns sign-in off then", _call("auth/disable", {})),
    _nobody("reads a key then", _call("kv/range", {"key": b64(permissions.EPOCH)})),
    _nobody("raises the alarm CORRUPT", _alarm("CORRUPT")),
)
"""In this order: on an old etcd each opens the way for the next."""
