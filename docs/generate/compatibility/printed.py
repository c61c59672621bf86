"""What NVIDIA Dynamo's five guides of 2025 and 2026 print: `page.py` writes it down, `tests/pages` runs it."""

from __future__ import annotations

from typing import Final

from docs.generate.compatibility import printed_engines, printed_first_steps, printed_network, printed_own
from docs.generate.compatibility.printed_row import Row

TOPICS: Final[dict[str, tuple[Row, ...]]] = {
    "Installing": printed_first_steps.INSTALLING,
    "A first model": printed_first_steps.FIRST_MODEL,
    "A distributed system": printed_network.DISTRIBUTED,
    "Network names": printed_network.NAMES,
    "Routing, migration, cancellation": printed_network.ROUTING,
    "llama.cpp": printed_engines.LLAMA_CPP,
    "SGLang": printed_engines.SGLANG,
    "vLLM": printed_engines.VLLM,
    "TensorRT-LLM": printed_engines.TRTLLM,
    "Echoes and mocker": printed_engines.SIMULATED,
    "Batches": printed_own.BATCH,
    "An engine of your own": printed_own.OWN_ENGINE,
    "A program of your own": printed_own.PROGRAMS,
    "Debugging": printed_own.DEBUGGING,
}
ROWS: Final = tuple(row for rows in TOPICS.values() for row in rows)
