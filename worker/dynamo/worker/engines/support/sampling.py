"""Name the sampling fields of a request as each engine does. Pure.

The fields are listed in `dynamo.llm.protocols`; an engine takes a field by the same name unless the table here says
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dynamo.engine_catalog import EngineName
from dynamo.llm.protocols import SAMPLING_FIELDS, SamplingOptions

NAMES: Final[Mapping[EngineName, Mapping[str, str | None]]] = {
    EngineName.LLAMACPP: {"repetition_penalty": "repeat_penalty"},
    EngineName.MISTRALRS: {"seed": None, "top_k": None},
    EngineName.SGLANG: {"seed": "sampling_seed"},
    EngineName.TRTLLM: {},
    EngineName.VLLM: {},
}
"""The engine's own names where they differ from ours; None: it has no such field, or its adapter converts it."""


def sampling_of(engine: EngineName, options: SamplingOptions) -> dict[str, Any]:
    """Return the fields that a request sets, by the engine's names."""
    renamed = NAMES[engine]
    values = ((renamed.get(field, field), getattr(options, field)) for field in SAMPLING_FIELDS)
    return {name: value for name, value in values if name is not None and value is not None}
