"""The bytes of vLLM's and SGLang's own KV event streams, read into `engine_blocks` events. Pure.

Both send `[topic, number (8 bytes, big-endian), msgpack]`; the last is `[time, events, data-parallel rank]`. An event
is an array that begins with its kind (SGLang, older vLLM) or a map with a `type` (newer vLLM; read off 0.32). Later
versions have more fields, older ones fewer. What is cached elsewhere than on the device is left out: our index knows
one tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from xxhash import xxh3_64_intdigest as _xxh3

from dynamo.llm.kv_events.engine_blocks import Cleared, EngineHash, Event, Removed, Stored

END_OF_REPLAY: Final = (1 << 64) - 1
"""The number that ends a replay's answer."""
NUMBER_BYTES: Final = 8
DEVICE: Final = frozenset((None, "GPU", "DEVICE"))
"""The `medium` of blocks that a request finds where it runs."""
HERE: Final = frozenset((None, "LOCAL"))
"""The `locality` of blocks that this engine holds itself."""
STORED: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality", "ownership", "session_id",
)  # fmt: skip
"""Fields in the order of an array."""
REMOVED: Final = ("block_hashes", "medium", "group_idx", "locality", "ownership")
_FIELDS: Final = {"BlockStored": STORED, "BlockRemoved": REMOVED, "AllBlocksCleared": ()}
T = TypeVar("T")
_HEX: Final = 16
"""Digits of a media identifier that its hash is: 64 bits of a digest."""
_decode: Final = msgspec.msgpack.Decoder().decode


class Batch(NamedTuple):
    """Batch of events of one engine step."""

    events: list[Event]
    dp_rank: int | None
    """None: the engine doesn't say."""


class UnreadableBatch(ValueError):  # noqa: N818 - what it is, not that it is one
    """Error: it is not what these engines send."""


def read_number(data: bytes) -> int:
    """Read a message's number; `END_OF_REPLAY` for the -1 that ends a replay. Raises `UnreadableBatch`."""
    if len(data) != NUMBER_BYTES:
        raise UnreadableBatch(f"a message's number has {NUMBER_BYTES} bytes, not {len(data)}")
    return int.from_bytes(data, "big")


def write_number(number: int) -> bytes:
    """Write what `read_number` reads: asks for a replay from `number` on."""
    return number.to_bytes(NUMBER_BYTES, "big")


def read_batch(payload: bytes) -> Batch:
    """Read a batch; raises `UnreadableBatch` with what is wrong."""
    try:
        data = _decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UnreadableBatch(f"no msgpack: {error}") from error
    if not isinstance(data, list) or len(data) < 2 or not isinstance(data[1], list):
        raise UnreadableBatch("a batch is [time, events, data-parallel rank]")
    rank = data[2] if len(data) > 2 else None
    if rank is not None and (type(rank) is not int or rank < 0):
        raise UnreadableBatch(f"{rank!r} is no data-parallel rank")
    try:
        events = [_event(item) for item in data[1]]
    except UnreadableBatch:
        raise
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise UnreadableBatch(f"an event lacks a field, or has a wrong one: {error!r}") from error
    return Batch([event for event in events if event is not None], rank)


def _event(data: Any) -> Event | None:
    """Read an event; None for what is not on the device."""
    kind, fields = _fields(data)
    match kind:
        case "BlockStored" | "BlockRemoved":
            if fields.get("medium") not in DEVICE or fields.get("locality") not in HERE:
                return None
            if kind == "BlockStored":
                return _stored(fields)
            return Removed(_hashes(fields), _optional(fields, "group_idx", int))
        case "AllBlocksCleared":
            return Cleared()
    raise UnreadableBatch(f"there is no event {kind!r}")


def _fields(data: Any) -> tuple[Any, dict[str, Any]]:
    if isinstance(data, dict):
        return data["type"], data
    kind, *values = data
    return kind, dict(zip(_FIELDS.get(kind, ()), values, strict=False))


def _stored(fields: dict[str, Any]) -> Stored:
    hashes, tokens, size = _hashes(fields), fields["token_ids"], fields["block_size"]
    parent, lora = fields["parent_block_hash"], _optional(fields, "lora_name", str)
    if not isinstance(tokens, list) or type(size) is not int or size < 1:
        raise UnreadableBatch("an event has no token ids or no block size")
    if lora is None and (number := fields.get("lora_id")) is not None:
        lora = str(number)  # older versions don't say more; its blocks must not be taken for the base model's
    media, salt = _extras(fields.get("extra_keys") or (), lora, begins=parent is None)
    if tokens and isinstance(tokens[0], list):
        tokens = [pair[0] for pair in tokens]  # SGLang with EAGLE: each token with the one after it
    salt = salt if salt is not None else _optional(fields, "cache_salt", str)
    return Stored(
        hashes, None if parent is None else _hash(parent), tokens, size, lora, salt, media,
        group=_optional(fields, "group_idx", int), kind=_optional(fields, "kv_cache_spec_kind", str),
    )  # fmt: skip


def _optional(fields: dict[str, Any], name: str, kind: type[T]) -> T | None:
    value = fields.get(name)
    if value is None or type(value) is kind:
        return value
    raise UnreadableBatch(f"the field {name} of an event is {value!r}")


def _hashes(fields: dict[str, Any]) -> list[EngineHash]:
    return [_hash(item) for item in fields["block_hashes"]]


def _hash(value: Any) -> EngineHash:
    if type(value) in (int, bytes):
        return value  # type: ignore[no-any-return]
    raise UnreadableBatch(f"{value!r} is no hash of a block")


def _extras(keys: Sequence[Any], lora: str | None, *, begins: bool) -> tuple[list[list[int]], str | None]:
    """Return per block the hashes of what it holds beside tokens, and the salt of a sequence that begins here.

    A block's keys are, in this order, the adapter's name, media as `[identifier, offset]` (older: the identifier
    alone), the salt (first block only) and digests of prompt embeddings.
    """
    media: list[list[int]] = []
    salt: str | None = None
    for index, block in enumerate(keys):
        own: list[int] = []
        for key in block or ():
            if isinstance(key, list):
                own.append(_media(key[0]))
            elif isinstance(key, str) and key == lora:
                continue
            elif isinstance(key, str) and begins and not index and not _is_digest(key):
                salt = key
            else:
                own.append(_media(key))
        media.append(own)
    return media, salt


def _is_digest(key: str) -> bool:
    return len(key) >= 4 * _HEX and all(digit in "0123456789abcdef" for digit in key)


def _media(key: Any) -> int:
    """Return 64 bits of an identifier: its first sixteen hexadecimal digits, else a hash."""
    if isinstance(key, str):
        try:
            return int(key[:_HEX], 16) if len(key) >= _HEX else _xxh3(key.encode(), seed=0)
        except ValueError:
            return _xxh3(key.encode(), seed=0)
    return _xxh3(key if isinstance(key, bytes) else repr(key).encode(), seed=0)
