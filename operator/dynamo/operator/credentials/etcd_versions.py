"""Which versions of etcd keep the keys of different users apart: `refused(version)`. Pure.

etcd checks rights by user since 3.0, but let a user past them in several ways that are fixed in these releases:

| what a user could do | advisory | fixed in |
|---|---|---|
| anything at all to any key, by a transaction within a transaction | GHSA-rfx7-8w68-q57q | 3.5.28, 3.6.9 |
| without a user: alarms (no more writes), compaction, leases, members | GHSA-q8m4-xhhv-38mg | 3.5.28, 3.6.9 |
| read by `prev_kv`, attach others' leases, by a put within a transaction | GHSA-x35m-3gp4-4fh5 | 3.5.30, 3.6.11 |
| watch all keys behind one that it may read | GHSA-xg4h-6gfc-h4m8 | 3.5.33, 3.6.14, 3.7.1 |
| with the database full: delete keys, revoke leases, turn sign-in off | etcd's pull request 22386 | 3.6.0, in no 3.5 |

`e2e/etcd` makes these attacks on a real server, `tests/operator/credentials/test_attacks.py` on an old one, where they
succeed.
"""

from __future__ import annotations

import re
from typing import Final

FIRST_GOOD: Final = {(3, 6): 14, (3, 7): 1}
"""The first good patch release by minor version; later minor versions are good, earlier ones have none."""
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,6})(?:\+[0-9A-Za-z.-]*)?")
_SHOWN: Final = 40


def refused(version: str) -> str | None:
    """Return why nobody may sign in to a server of this version; None where users are kept apart.

    What is no release (`3.6.14-rc.0`, nothing at all) is refused too: nobody knows what it has.
    """
    match = _VERSION.fullmatch(version)
    if match is not None and _is_good(*(int(part) for part in match.groups())):
        return None
    wanted = " or ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(FIRST_GOOD.items()))
    problem = f"runs version {version[:_SHOWN]!r}" if version else "reports no version at /version"
    return (
        f"{problem}, but authentication isolates pipelines only from {wanted} on: "
        "upgrade etcd (etcd.image.tag of the chart), or configure a newer server"
    )


def _is_good(major: int, minor: int, patch: int) -> bool:
    if (major, minor) > max(FIRST_GOOD):
        return True
    first = FIRST_GOOD.get((major, minor))
    return first is not None and patch >= first
