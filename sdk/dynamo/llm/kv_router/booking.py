"""One request in a `KvScheduler`: its prompt's names, where it may go, and where it counts until it is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamo.llm.kv.block_hash import block_hashes, media_hashes, seed_of, sequence_hashes
from dynamo.llm.kv.scheduler import Decision, KvScheduler, Prompt
from dynamo.llm.kv_events.replica_sync import Shared
from dynamo.runtime.errors import InvalidArgument


class FollowCounts:
    """Counts of following the workers' events."""

    def __init__(self) -> None:
        self.unfollowed: dict[str, int] = {}
        """Instances by why their events are not followed."""
        self.counters: Counter[str] = Counter()

    def add(self, counter: str, amount: float = 1) -> None:
        self.counters[counter] += int(amount)


class Booking:
    """One request that counts somewhere, until `free`."""

    def __init__(self, router: KvScheduler, request: str, decision: Decision, shared: Shared | None) -> None:
        self._router, self._request, self._shared = router, request, shared
        self.rank, self.overlap_blocks = decision.rank, decision.overlap_blocks

    def prefilled(self) -> None:
        self._router.prefilled(self._request)
        if self._shared is not None:
            self._shared.prefilled()

    def free(self) -> None:
        self._router.ended(self._request)
        if self._shared is not None:
            self._shared.freed()


class Target:
    """Target: where a request may go."""

    def __init__(
        self, instance: int | None = None, allowed: frozenset[int] | None = None, dp_rank: int | None = None
    ) -> None:
        self.instance, self.allowed, self.dp_rank = instance, allowed, dp_rank

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> Target:
        """Read the target from a request's `routing` hints."""
        routing = request.get("routing") or {}
        rank = routing.get("dp_rank")
        if rank is not None and (type(rank) is not int or rank < 0):
            raise InvalidArgument(f"{rank!r} is no data-parallel rank")
        if routing.get("prefill_dp_rank"):
            raise InvalidArgument("prefill_dp_rank: this router has no prefill workers of their own")
        names = ("backend_instance_id", "decode_worker_id", "prefill_worker_id")
        pinned = next((routing[name] for name in names if routing.get(name) is not None), None)
        allowed = routing.get("allowed_worker_ids")
        if pinned is not None and type(pinned) is not int:
            raise InvalidArgument(f"{pinned!r} is no worker id")
        if allowed is not None and not isinstance(allowed, Sequence):
            raise InvalidArgument("allowed_worker_ids is a list")
        return cls(pinned, None if allowed is None else frozenset(allowed), rank)


ANYWHERE: Final = Target()


def prompt_of(
    tokens: Any, block_size: int, infos: Sequence[Mapping[str, Any] | None], lora: str | None, namespace: str | None
) -> Prompt:
    """Name a prompt's blocks; raises `InvalidArgument` for what can't be named."""
    if not isinstance(tokens, Sequence) or isinstance(tokens, str | bytes):
        raise InvalidArgument("token_ids is a list of token ids")
    try:
        seed, media = seed_of(lora, namespace), media_hashes(infos)
        local = block_hashes(tokens, block_size, seed=seed, media=media)
    except (ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(f"token_ids can't be routed: {error}") from error
    return Prompt(sequence_hashes(local), len(tokens))
