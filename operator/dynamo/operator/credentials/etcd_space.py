"""Room in the platform's etcd: `made_room`, which `Access` calls beside the reconciles.

A user may write as much as it likes below its own keys, and etcd has no quota per user: whoever fills its database has
it refuse everybody's writes (the alarm NOSPACE). Requests go on, but nobody registers any more. So what fills it goes,
and the alarm with it: first the history, then, where that isn't enough, all registrations. Processes look for their own
keys every few seconds and write them again; routers go on with those that they know, as after any loss of etcd's data.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

REGISTRATIONS: Final = ("dynamo/instances/", "dynamo/clients/")
CROWDED: Final = 0.5
"""The part of the quota that may be in use once the history is gone."""

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
    if await _without_history(call) > CROWDED:
        for text in REGISTRATIONS:
            await call("kv/deleterange", prefix(text))
        await _without_history(call)
        done = "dropped its history and all registrations; instances register again within seconds"
    await call("maintenance/defragment", {})
    for alarm in alarms:
        await call("maintenance/alarm", {"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": alarm["memberID"]})
    return f"etcd was full, so no instance could register: {done}. Find whose keys fill it: docs/troubleshooting.md"


async def _without_history(call: Call) -> float:
    """Drop all history; the part of the quota that is in use then.

    The space comes back by defragmenting, but only once little is left to copy: done to a full one it costs etcd more
    memory than it may have.
    """
    revision = (await call("maintenance/status", {}))["header"]["revision"]
    await call("kv/compaction", {"revision": revision, "physical": True})
    status = await call("maintenance/status", {})
    return int(status.get("dbSizeInUse", 0)) / max(1, int(status.get("dbSizeQuota", 0)))
