"""Room in the platform's etcd: `made_room`, which `Access` calls beside the reconciles.

A user may write as much as it likes below its own keys, and etcd has no quota per user: whoever fills its database has
it refuse everybody's writes (the alarm NOSPACE). Requests go on, but nobody registers any more. So what fills it goes,
and the alarm with it: first the history, then, where that isn't enough, all registrations. Processes look for their own
keys every few seconds and write them again; routers go on with those that they know, as after any loss of etcd's data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

REGISTRATIONS: Final = ("dynamo/instances/", "dynamo/clients/")
CROWDED: Final = 0.5
"""The part of the quota that may be in use once the history is gone."""
READINGS: Final = 12
"""How often etcd is asked what is in use before a figure above `CROWDED` is believed."""
COMMIT_SECONDS: Final = 0.15
"""etcd commits what was written after 0.1 seconds."""

Call = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]


async def made_room(call: Call, prefix: Callable[[str], Mapping[str, Any]]) -> str:
    """Make room in an etcd that is full; return what was done, for the log, empty where it isn't full.

    `call` asks etcd as its root, `prefix` gives the range of keys that begin with a text. What it does may be done
    twice, or be left half done: the alarm is taken back last.
    """
    alarms = [
        alarm for alarm in (await call("maintenance/alarm", {})).get("alarms", ()) if alarm.get("alarm") == "NOSPACE"
    ]
    if not alarms:
        return ""
    done = "dropped its history"
    await _drop_history(call)
    if await _is_crowded(call, alarms):
        for text in REGISTRATIONS:
            await call("kv/deleterange", prefix(text))
        await _drop_history(call)
        done = "dropped its history and all registrations; instances register again within seconds"
    await call("maintenance/defragment", {})
    for alarm in alarms:
        await call("maintenance/alarm", _alarm("DEACTIVATE", alarm))
    page = "docs/how-to/operate/troubleshooting.md"
    return f"etcd was full, so no instance could register: {done}. Find whose keys fill it: {page}"


async def _drop_history(call: Call) -> None:
    """Drop all history.

    The space comes back by defragmenting, but only once little is left to copy: done to a full one it costs etcd more
    memory than it may have.
    """
    revision = (await call("maintenance/status", {}))["header"]["revision"]
    await call("kv/compaction", {"revision": revision, "physical": True})


async def _is_crowded(call: Call, alarms: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether what is left takes more than `CROWDED` of the quota.

    etcd counts pages at a commit, and not as free those that a reader held at that moment. So a figure that is too
    high is asked for again, each time after a write: raising the alarm anew is one that a full etcd takes.
    """
    for _ in range(READINGS):
        status = await call("maintenance/status", {})
        if int(status.get("dbSizeInUse", 0)) <= CROWDED * max(1, int(status.get("dbSizeQuota", 0))):
            return False
        for alarm in alarms:
            for action in ("DEACTIVATE", "ACTIVATE"):
                await call("maintenance/alarm", _alarm(action, alarm))
        await asyncio.sleep(COMMIT_SECONDS)
    return True


def _alarm(action: str, alarm: Mapping[str, Any]) -> dict[str, Any]:
    return {"action": action, "alarm": "NOSPACE", "memberID": alarm["memberID"]}
