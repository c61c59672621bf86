"""Runs in a pod of a hostile tenant, in the worker's image: tries NATS and etcd, and prints what it got as JSON.

`intruder.py spy` without credentials and with the tenant's own; `flood SECONDS`, `hoard READERS SECONDS` and `fill`
with its own. It imports nothing of ours but what the image has, since it is sent there as one file.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import nkeys  # type: ignore[import-untyped]
from nats.aio.client import Client

FOLDER = Path("/credentials")
NATS, ETCD = os.environ.get("NATS", ""), os.environ.get("ETCD", "")
OWN, VICTIM = os.environ.get("OWN", ""), os.environ.get("VICTIM", "")
LISTEN_SECONDS = 10.0
CALL_SECONDS = 10.0
MOST_WRITES = 10_000
UNDER_WAY = "the flood is under way"
STALE = (400, 401)
"""What etcd answers to a token from before anyone's rights changed: on a cluster, whenever a pipeline comes or goes."""
HOARDED, HOARDED_BYTES = 100, 1 << 20
"""In one wave; NATS cuts off who has more than 64 MiB to read."""
WIDE = (">", "dyn.>", "dyn.*.ep.>", "_INBOX.>", "$SYS.>", "$JS.API.>", f"dyn.{VICTIM}.>", f"dyn.{VICTIM}.in.>")
INSTANCES = f"dyn.{VICTIM}.ep.worker.generate.1"


def etcd(path: str, body: object, token: str = "") -> tuple[int, dict[str, Any]]:
    """The answer of etcd's gateway."""
    headers = {"Content-Type": "application/json", **({"Authorization": token} if token else {})}
    request = urllib.request.Request(f"{ETCD}/v3/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {}


def text(key: str) -> str:
    """Base64, as the gateway wants it."""
    return b64encode(key.encode()).decode()


def signed_in() -> str:
    """A token of the tenant's own user."""
    name, password = ((FOLDER / f"etcd.{part}").read_text() for part in ("username", "password"))
    return str(etcd("auth/authenticate", {"name": name, "password": password})[1]["token"])


def tried_on_etcd(token: str) -> dict[str, int]:
    """Statuses of what must be refused."""
    everything = {"key": "AA==", "range_end": "AA=="}
    rogue = {"key": text(f"dynamo/instances/{VICTIM}/worker/generate/77"), "value": text("{}")}
    inner = {"success": [{"request_put": rogue}]}
    alarm = {"action": "ACTIVATE", "alarm": "NOSPACE", "memberID": "0"}
    calls = {
        "kv/range": everything,
        "kv/put": rogue,
        "kv/txn": {"success": [{"request_txn": inner}]},
        "kv/deleterange": everything,
        "kv/compaction": {"revision": "2"},
        "maintenance/alarm": alarm,
        "lease/leases": {},
        "auth/disable": {},
        "auth/user/list": {},
    }
    return {path: etcd(path, body, token)[0] for path, body in calls.items()}


async def connected(own: bool) -> Client:
    """Raises where the server lets nobody in."""

    async def ignore(_error: Exception) -> None:
        pass

    more: dict[str, Any] = {"user_credentials": str(FOLDER / "nats.user.creds")} if own else {}
    return await nats.connect(NATS, allow_reconnect=False, connect_timeout=5, error_cb=ignore, **more)


async def heard(own: bool) -> int | None:
    """How many messages it gets at that are not its own; None where it isn't let in."""
    count = 0

    async def note(message: Any) -> None:
        nonlocal count
        count += not message.subject.startswith(f"dyn.{OWN}.")

    try:
        spy = await connected(own)
    except Exception:
        return None
    for subject in WIDE:
        await spy.subscribe(subject, cb=note)
    for _ in range(100):
        await spy.publish(INSTANCES, b"not a request")
    await asyncio.sleep(LISTEN_SECONDS)
    await spy.close()
    return count


async def spied() -> dict[str, Any]:
    """Everything, by who asks."""
    token = signed_in()
    return {
        "nobody": {"heard": await heard(False), "etcd": tried_on_etcd("")},
        "tenant": {"heard": await heard(True), "etcd": tried_on_etcd(token)},
    }


async def flooded(seconds: float) -> dict[str, int]:
    """Keeps NATS and etcd as busy as it can, in its own subjects and keys."""
    until, sent, calls, token = time.monotonic() + seconds, 0, 0, signed_in()
    publishers, heard_of = 4, 0

    async def read(_message: Any) -> None:
        pass

    async def publish() -> None:
        nonlocal sent, heard_of
        bus = await connected(True)
        for _ in range(4):
            await bus.subscribe(f"dyn.{OWN}.flood", cb=read)
        while time.monotonic() < until:
            for size in (16, 1024, 64 * 1024):
                await bus.publish(f"dyn.{OWN}.flood", b"x" * size)
                sent += 1
            await bus.flush()
            heard_of += 1
            if heard_of == publishers:  # as many rounds have passed the server: whoever measures may begin
                sys.stdout.write(f"{UNDER_WAY}\n")
                sys.stdout.flush()
        await bus.close()

    async def write() -> None:
        nonlocal calls
        put = {"key": text(f"dynamo/instances/{OWN}/flood"), "value": text("x" * 4096)}
        while time.monotonic() < until:
            await asyncio.to_thread(etcd, "kv/put", put, token)
            await asyncio.to_thread(etcd, "lease/grant", {"TTL": "30"}, token)
            calls += 2

    await asyncio.gather(*(publish() for _ in range(publishers)), write())
    return {"messages": sent, "calls": calls}


async def silent() -> asyncio.StreamWriter:
    """A connection of its own without a client, which would read; signed in."""
    place = urlsplit(NATS)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    nonce = json.loads((await reader.readline()).removeprefix(b"INFO "))["nonce"]
    lines = (FOLDER / "nats.user.creds").read_text().splitlines()
    token, seed = (next(line for line in lines if line.startswith(start)) for start in ("ey", "SU"))
    signature = urlsafe_b64encode(nkeys.from_seed(seed.encode()).sign(nonce.encode())).decode().rstrip("=")
    about = {"verbose": False, "pedantic": False, "jwt": token, "sig": signature, "headers": True}
    writer.write(f"CONNECT {json.dumps(about)}\r\nPING\r\n".encode())
    if await reader.readline() != b"PONG\r\n":
        raise PermissionError("not let in")
    return writer


async def hoarded(readers: int, seconds: float) -> dict[str, int]:
    """Connections that subscribe and read nothing, and one that publishes to them; again, when NATS has gone."""
    until, sent, lost = time.monotonic() + seconds, 0, 0
    message = f"PUB dyn.{OWN}.hoard {HOARDED_BYTES}\r\n".encode() + b"x" * HOARDED_BYTES + b"\r\n"
    while time.monotonic() < until:
        held: list[asyncio.StreamWriter] = []
        try:
            for _ in range(readers):
                held.append(await silent())
                held[-1].write(f"SUB dyn.{OWN}.hoard 1\r\n".encode())
                await held[-1].drain()
            publisher = await silent()
            held.append(publisher)
            for _ in range(HOARDED):
                publisher.write(message)
                await asyncio.wait_for(publisher.drain(), max(0.1, until - time.monotonic()))
                sent += 1
        except (OSError, ValueError, KeyError):
            lost += 1
            await asyncio.sleep(0.5)
        for writer in held:
            writer.transport.abort()
    return {"messages": sent, "lost": lost}


async def filled() -> dict[str, int]:
    """Writes to etcd until it takes no more: what it wrote stays."""
    token, value, writes = signed_in(), text("x" * 380_000), 0
    for number in range(MOST_WRITES):
        put = {"key": text(f"dynamo/instances/{OWN}/fill/{number}"), "value": value}
        status, _ = await asyncio.to_thread(etcd, "kv/put", put, token)
        if status in STALE:
            token = signed_in()
        elif status != 200:
            return {"writes": writes, "status": status}
        else:
            writes += 1
    return {"writes": writes, "status": 200}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["flood", seconds]:
            job: Coroutine[Any, Any, object] = flooded(float(seconds))
        case ["hoard", readers, seconds]:
            job = hoarded(int(readers), float(seconds))
        case ["fill"]:
            job = filled()
        case _:
            job = spied()
    sys.stdout.write(json.dumps(asyncio.run(job)) + "\n")
