"""The mock engine's arguments, in both forms that people have: flat, and nested under `engine`.

Names are NVIDIA Dynamo's, with underscores or hyphens. docs/design/serving/kv.md says which of them mean what here.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Final

import msgspec

from dynamo.llm.kv.index import MOST_RANKS
from dynamo.llm.processing.embeddings import MOST_DIMENSIONS
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.mocker.kv_transfer_state import AUTO, DTYPES, Link
from dynamo.worker.engines.mocker.scheduler import Limits
from dynamo.worker.engines.mocker.stepper import Reasoning, Timing
from dynamo.worker.settings import unknown_name

_NESTED: Final = "engine"
_OF_DYNAMO: Final = "dynamo"
"""An object of NVIDIA Dynamo's newer files; two of its names mean something here."""
_SESSION: Final = "handoff_session_timeout_ms"
_BOOTSTRAP: Final = "bootstrap_port"
EMBEDDING_DIM: Final = "embedding_dim"
"""Ours; the echo has it, too."""
ROLES: Final = {"agg": "aggregated", "aggregated": "aggregated", "prefill": "prefill", "decode": "decode"}
"""Values of `disaggregation_mode`, and the role that they are."""
_ALIASES: Final = {
    "num_gpu_blocks_override": "num_gpu_blocks", "data_parallel_size": "dp_size", "engine_type": "backend",
}  # fmt: skip
_IGNORED: Final = (
    "tensor_parallel_size", "enable_local_indexer", "sglang", "trtllm",
)  # fmt: skip
"""Accepted since files for NVIDIA Dynamo have them; they change nothing of what is simulated."""
_FIXED: Final[dict[str, Any]] = {
    "backend": "vllm", "timing_model": {"type": "polynomial"},
    "kv_transfer_timing_mode": "full_prompt", "prefill_schedule_interval": 1, "prefill_decode_interval": 0,
}  # fmt: skip
"""NVIDIA Dynamo knows other values too; here only with these."""
_RANGES: Final = {
    "num_gpu_blocks": (1, 1 << 40), "block_size": (1, 1 << 20), "max_num_seqs": (1, 1 << 20),
    "max_num_batched_tokens": (1, 1 << 30), "watermark": (0, 0.99), "speedup_ratio": (0, 1e12),
    "decode_speedup_ratio": (0, 1e12), "max_model_len": (2, 1 << 30), "startup_time": (0, 86400),
    "seed": (0, 1 << 62), "dp_size": (1, MOST_RANKS),
    "kv_transfer_bandwidth": (0, 1e9), "kv_bytes_per_token": (0, 1 << 40), _SESSION: (1, 86_400_000),
    _BOOTSTRAP: (0, 65535), EMBEDDING_DIM: (1, MOST_DIMENSIONS),
}  # fmt: skip


class _Marks(msgspec.Struct, forbid_unknown_fields=True):
    start_thinking_token_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    end_thinking_token_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
    thinking_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass(frozen=True)
class MockArguments:
    """Arguments of a mock engine."""

    limits: Limits = field(default_factory=Limits)
    timing: Timing = field(default_factory=Timing)
    max_model_len: int | None = None
    startup_time: float = 0.0
    seed: int = 0
    dp_size: int = 1
    """Data-parallel ranks: each has these limits for itself."""
    reasoning: Reasoning | None = None
    role: str | None = None
    """`prefill`, `decode` or `aggregated`; None: not said."""
    link: Link = field(default_factory=Link)
    handoff_session_timeout_ms: int = 300_000
    """How long a computed prompt is kept for a decode engine."""
    bootstrap_port: int | None = None
    """There where decode engines may be told of a prompt before it is computed; no port is opened."""
    images: bool = True
    """Images in prompts are taken, counted and described."""
    embedding_dim: int | None = None
    """Numbers in a vector: it makes vectors, not text."""


_LIMITS: Final = {f.name: f.default for f in fields(Limits)}
_TIMING: Final[dict[str, Any]] = Timing._field_defaults
_OWN: Final[dict[str, Any]] = {
    "max_model_len": 0,
    "startup_time": 0.0,
    "seed": 0,
    "dp_size": 1,
    "reasoning": None,
    _SESSION: 300_000,
    _BOOTSTRAP: 0,
    EMBEDDING_DIM: 0,
    "images": True,
}
_LINK: Final[dict[str, Any]] = {**Link._field_defaults, "kv_bytes_per_token": 0}
_MODES: Final = ("disaggregation_mode", "is_prefill", "is_decode")
_DEFAULTS: Final[dict[str, Any]] = {**_LIMITS, **_TIMING, **_OWN, **_LINK}


def read_arguments(given: dict[str, Any], block_size: int) -> MockArguments:
    """Read `--engine-args`; `block_size` is the default for the argument of that name.

    Raises `InvalidArgument` naming the argument.
    """
    arguments: dict[str, Any] = {"block_size": block_size}
    modes: dict[str, Any] = {}
    for name, value in _flat(given).items():
        if name in _MODES:
            modes[name] = value
        elif name in _FIXED:
            _check_fixed(name, value)
        elif name not in _IGNORED and value is not None:
            arguments[name] = _checked(name, value)
    limits = Limits(**{k: v for k, v in arguments.items() if k in _LIMITS})
    if limits.longest < 2:
        raise InvalidArgument("mocker argument 'num_gpu_blocks' is too small: no prompt fits into the KV cache")
    made = MockArguments(limits, Timing(**{k: v for k, v in arguments.items() if k in _TIMING}))
    made = replace(made, link=Link(**{k: v for k, v in arguments.items() if k in _LINK}), role=_role(modes))
    return replace(made, **{k: v for k, v in arguments.items() if k in _OWN})


def _flat(given: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by their own names, wherever they stand."""
    nested, of_dynamo = given.get(_NESTED, {}), given.get(_OF_DYNAMO, {})
    for name, value in ((_NESTED, nested), (_OF_DYNAMO, of_dynamo)):
        if not isinstance(value, dict):
            raise InvalidArgument(f"mocker argument {name!r} must be an object")
    flat = {k: v for k, v in given.items() if k not in (_NESTED, _OF_DYNAMO)} | nested
    flat |= {name: of_dynamo[name] for name in (_SESSION, _BOOTSTRAP) if name in of_dynamo}
    plain = {name.replace("-", "_"): value for name, value in flat.items()}
    return {_ALIASES.get(name, name): value for name, value in plain.items()}


def _role(modes: dict[str, Any]) -> str | None:
    """Return what the newer word and the two older ones say of the engine's part; they must agree."""
    said = set()
    mode = modes.get("disaggregation_mode")
    if mode is not None:
        if not isinstance(mode, str) or mode not in ROLES:
            known = "agg, prefill or decode"
            raise InvalidArgument(f"mocker argument 'disaggregation_mode' must be {known}, got {mode!r}")
        said.add(ROLES[mode])
    for role in ("prefill", "decode"):
        value = modes.get(f"is_{role}")
        if value not in (None, True, False):
            raise InvalidArgument(f"mocker argument 'is_{role}' must be true or false, got {value!r}")
        if value:
            said.add(role)
    if len(said) > 1:
        raise InvalidArgument(f"mocker arguments {', '.join(sorted(modes))} name several parts: {sorted(said)}")
    return said.pop() if said else None


def _check_fixed(name: str, value: Any) -> None:
    if isinstance(value, str):
        value = value.replace("-", "_")
    if value not in (None, _FIXED[name]):
        raise InvalidArgument(f"mocker argument {name!r} can only be {_FIXED[name]!r} in this version, got {value!r}")


def _checked(name: str, value: Any) -> Any:
    if name not in _DEFAULTS:
        raise unknown_name("mocker argument", name, list(_DEFAULTS))
    if name == "preemption_mode":
        if value not in ("lifo", "fifo"):
            raise InvalidArgument(f"mocker argument 'preemption_mode' must be lifo or fifo, got {value!r}")
        return value
    if name == "kv_cache_dtype":
        if value != AUTO and value not in DTYPES:
            raise InvalidArgument(f"mocker argument {name!r} must be one of {AUTO}, {', '.join(DTYPES)}; got {value!r}")
        return value
    if name == "kv_bytes_per_token" and value == AUTO:
        return None
    if name == "reasoning":
        return _reasoning(value)
    if isinstance(_DEFAULTS[name], bool):
        if not isinstance(value, bool):
            raise InvalidArgument(f"mocker argument {name!r} must be true or false, got {value!r}")
        return value
    return _number(name, value)


def _reasoning(value: Any) -> Reasoning:
    """Read the marks: NVIDIA Dynamo's flag is a JSON text, its file has an object."""
    try:
        fields = msgspec.json.decode(value, type=dict) if isinstance(value, str) else value
        made = msgspec.convert(fields, _Marks)
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"mocker argument 'reasoning': {error}") from error
    return Reasoning(*msgspec.structs.astuple(made))


def _number(name: str, value: Any) -> Any:
    whole = isinstance(_DEFAULTS[name], int)
    low, high = _RANGES[name]
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    if not fits or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InvalidArgument(f"mocker argument {name!r} must be {kind} from {low:g} to {high:g}, got {value!r}")
    return int(value) if whole else float(value)
