"""What a prefill engine hands to a decode engine, and how long that takes. Pure; time is an argument.

NVIDIA Dynamo's formula: the whole prompt's KV over the link's bandwidth. Its dict has the names of vLLM's connector
where those mean something here. What is kept has a name: a handle that the answer says, or the room of a request whose
decode engine was told at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from dynamo.runtime.errors import InvalidArgument, StreamIncomplete

T = TypeVar("T")
W = TypeVar("W")
PARAMS: Final = "kv_transfer_params"
"""The key of a hand-over in a request's and an answer's `disaggregated_params`."""
_ROOM: Final = "room "
AUTO: Final = "auto"
DTYPES: Final = {
    "bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "fp8_ds_mla": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
}  # fmt: skip
"""Bytes of one number."""


class Link(NamedTuple):
    """Link over which KV travels from prefill to decode."""

    kv_transfer_bandwidth: float = 64.0
    """GB (10^9 bytes) a second; 0: it takes no time."""
    kv_bytes_per_token: int | None = None
    """None: as the model's configuration says."""
    kv_cache_dtype: str = AUTO

    def milliseconds(self, tokens: int, bytes_per_token: int) -> float:
        """Return how long the KV of a prompt takes, before any speedup."""
        if not self.kv_transfer_bandwidth:
            return 0.0
        return tokens * bytes_per_token / (self.kv_transfer_bandwidth * 1e6)


def bytes_per_token(config: Mapping[str, Any], dtype: str = AUTO) -> int | None:
    """Return what one token's KV takes, by a model's `config.json`; None where that doesn't say."""
    config = config.get("text_config") or config
    heads = config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim")
    if size is None and heads and config.get("hidden_size"):
        size = config["hidden_size"] // heads
    own = config.get("torch_dtype") or config.get("dtype")
    number = DTYPES.get(str(own) if dtype == AUTO else dtype)
    total = 2
    for factor in (config.get("num_hidden_layers"), kv_heads, size, number):
        if type(factor) is not int or factor <= 0:
            return None
        total *= factor
    return total


class Handover(msgspec.Struct, kw_only=True):
    """One prompt's KV, kept for whoever comes for it."""

    remote_engine_id: str
    """The instance that has it: `namespace.component.endpoint/id`, its id in hexadecimal."""
    remote_request_id: str
    """Under which it is kept there."""
    remote_dp_rank: int = 0
    num_tokens: int


class Coming(msgspec.Struct, kw_only=True):
    """News of a prompt on its way, as the stream of a transfer says it."""

    num_tokens: int
    cached_tokens: int = 0
    """Of the prompt, in the prefill engine's cache before."""


def given(params: Any) -> Handover:
    """Read `disaggregated_params`; raises `InvalidArgument` naming what is wrong."""
    inner = params.get(PARAMS) if isinstance(params, Mapping) else None
    try:
        handover = msgspec.convert(inner, Handover)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"prefill_result.disaggregated_params.{PARAMS}: {error}") from error
    return handover


def room_name(room: int) -> str:
    """Return the name under which the prompt of a room is kept; no handle looks like it."""
    return f"{_ROOM}{room}"


class Kept(Generic[T, W]):
    """Prompts that a prefill engine keeps, and who waits for those that it still computes; each is for one.

    A thing ends `seconds` after it was computed. Who comes for a room that nobody works on waits `patience` seconds:
    the two requests of a room are sent at the same time.
    """

    def __init__(self, seconds: float, patience: float) -> None:
        self._seconds, self._patience = seconds, patience
        self._last = 0
        self._things: dict[str, tuple[float, T]] = {}
        """In the order in which they end."""
        self._rooms: set[str] = set()
        """Those being computed."""
        self._waiting: dict[str, tuple[float, W]] = {}

    def __len__(self) -> int:
        return len(self._things)

    @property
    def deadline(self) -> float | None:
        """Return when somebody's time is over, at the earliest."""
        first = next((until for until, _ in self._things.values()), None)
        tired = (until for name, (until, _) in self._waiting.items() if name not in self._rooms)
        return min(tired, default=None) if first is None else min((first, *tired))

    def begins(self, room: str) -> None:
        """Note that its prompt is being computed."""
        self._rooms.add(room)

    def keep(self, thing: T, now: float, room: str = "") -> tuple[str, W | None]:
        """Keep a prompt; returns its name, and who waits for it: then it is his, and not kept."""
        self._last += 1
        name = room or f"{self._last:x}"
        self._rooms.discard(room)
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            self._things[name] = (now + self._seconds, thing)
        return name, None if waiting is None else waiting[1]

    def come(self, name: str, who: W, now: float) -> T | None:
        """Let somebody come for it. Not kept any more, it is his; None: he waits.

        `StreamIncomplete`: it is not here.
        """
        thing = self._things.pop(name, None)
        if thing is not None:
            return thing[1]
        if not name.startswith(_ROOM) or name in self._waiting:
            raise StreamIncomplete(f"the prompt {name!r} is not kept here, or not any more")
        self._waiting[name] = (now + self._patience, who)
        return None

    def leaves(self, name: str, who: W) -> None:
        """Forget somebody who waits no longer."""
        if name in self._waiting and self._waiting[name][1] is who:
            del self._waiting[name]

    def ends(self, room: str) -> W | None:
        """Forget what won't be computed; returns who waited for it. Fine where it was computed already."""
        if room not in self._rooms:
            return None
        self._rooms.remove(room)
        waiting = self._waiting.pop(room, None)
        return None if waiting is None else waiting[1]

    def everybody(self) -> list[W]:
        """Return who waits, and does not any more."""
        waiting = [who for _, who in self._waiting.values()]
        self._waiting.clear()
        return waiting

    def expired(self, now: float) -> tuple[list[T], list[W]]:
        """Return prompts and people whose time is over; nobody keeps or expects them any more."""
        late = [name for name, (until, _) in self._things.items() if until <= now]
        tired = [name for name, (until, _) in self._waiting.items() if until <= now and name not in self._rooms]
        return [self._things.pop(name)[1] for name in late], [self._waiting.pop(name)[1] for name in tired]
