"""Names of the users that pipelines have in etcd, and which of them nobody needs any more. Pure.

`dynamo/<platform>/<Kubernetes namespace>/<pipeline>/<digest>`: the name tells whose it is, so
that what was deleted while no operator ran is found too. The digest is the password's and the
rights': a user of that name has both, and another password is another user, so that the one
before stays good until every pod has read its new files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dynamo.operator.credentials.permissions import Keys

_ROOT: Final = "dynamo"
REPLACED_SECONDS: Final = 600.0
"""How long a user lives on after another took its place: a kubelet needs a minute or two for new files."""


class Owner(NamedTuple):
    """A pipeline, by its Kubernetes names."""

    namespace: str
    name: str


def user_name(platform: str, owner: Owner, password: str, ranges: Sequence[Keys]) -> str:
    """Return the name of the pipeline's user that has this password and these rights."""
    digest = hashlib.sha256(json.dumps([password, ranges]).encode()).hexdigest()[:12]
    return f"{_ROOT}/{platform}/{owner.namespace}/{owner.name}/{digest}"


def owner_of(platform: str, user: str) -> Owner | None:
    """Return whose a user is; None for users that this platform didn't make."""
    parts = user.split("/")
    if len(parts) != 5 or parts[:2] != [_ROOT, platform] or not all(parts):
        return None
    return Owner(parts[2], parts[3])


@dataclass
class Leftovers:
    """Remembers since when a user is not needed; forgetting that only delays its removal."""

    _since: dict[str, float] = field(default_factory=dict)

    def orphans(self, platform: str, users: Iterable[str], alive: Iterable[Owner]) -> dict[str, Owner]:
        """Return the users of deleted pipelines, which may go once their pods have."""
        there = set(alive)
        owners = {user: owner for user in users if (owner := owner_of(platform, user)) is not None}
        return {user: owner for user, owner in owners.items() if owner not in there}

    def replaced(self, platform: str, users: Iterable[str], current: Mapping[Owner, str], now: float) -> list[str]:
        """Return users that were replaced long enough ago; those of others stay."""
        old = set()
        for user in users:
            owner = owner_of(platform, user)
            if owner is not None and current.get(owner, user) != user:
                old.add(user)
        self._since = {user: self._since.get(user, now) for user in old}
        return sorted(user for user, since in self._since.items() if now - since >= REPLACED_SECONDS)
