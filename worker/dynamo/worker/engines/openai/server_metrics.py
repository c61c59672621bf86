"""The load of a server, out of what its `/metrics` says: vLLM's, SGLang's, llama-server's and TGI's names. Pure.

NIM serves vLLM's names. Only lines that begin with a name of interest are looked at: such texts are long.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

MOST_BYTES: Final = 1 << 20
"""Of one text: what is longer is not read."""
_MOST_SERIES: Final = 256
_MOST: Final = 1e9
_RUNNING: Final = (
    b"vllm:num_requests_running", b"sglang:num_running_reqs", b"llamacpp:requests_processing", b"tgi_batch_current_size"
)  # fmt: skip
_WAITING: Final = (
    b"vllm:num_requests_waiting", b"sglang:num_queue_reqs", b"llamacpp:requests_deferred", b"tgi_queue_size"
)  # fmt: skip
_USAGE: Final = (
    b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage", b"llamacpp:kv_cache_usage_ratio"
)  # fmt: skip
_PREEMPTIONS: Final = (b"vllm:num_preemptions_total",)
_CACHE: Final = b"vllm:cache_config_info"
_LABEL: Final = re.compile(rb'(block_size|num_gpu_blocks)="(\d{1,9})"')


class ServerLoad(NamedTuple):
    """Load of a server as it told it last."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    preemptions: int = 0
    block_size: int | None = None
    blocks: int | None = None


def load_of(text: bytes) -> ServerLoad | None:
    """Return the load that a text tells; None where it has none of the names."""
    text = b"\n" + text
    running, waiting = _first(text, _RUNNING), _first(text, _WAITING)
    usage, preempted = _first(text, _USAGE), _first(text, _PREEMPTIONS)
    if not (running or waiting or usage):
        return None
    labels = {name: int(value) for line in _lines(text, _CACHE) for name, value in _LABEL.findall(line)}
    return ServerLoad(
        int(sum(running)), int(sum(waiting)), min(max(usage, default=0.0), 1.0), int(sum(preempted)),
        labels.get(b"block_size") or None, labels.get(b"num_gpu_blocks") or None,
    )  # fmt: skip


def _first(text: bytes, names: tuple[bytes, ...]) -> list[float]:
    """Return the values of the first of `names` that the text has, over all its series."""
    for name in names:
        if values := [value for line in _lines(text, name) if (value := _value(line)) is not None]:
            return values
    return []


def _lines(text: bytes, name: bytes) -> Iterator[bytes]:
    """Yield what follows the name in each line that begins with it."""
    place = 0
    for _ in range(_MOST_SERIES):
        place = text.find(b"\n" + name, place)
        if place < 0:
            return
        place += 1 + len(name)
        if text[place : place + 1] in (b"{", b" "):
            end = text.find(b"\n", place)
            yield text[place : end if end >= 0 else len(text)]


def _value(line: bytes) -> float | None:
    words = line.rpartition(b"}")[2].split(None, 1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return min(value, _MOST) if value >= 0 else None  # not a number is neither
