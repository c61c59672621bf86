"""What the original's five guides of 2025 and 2026 print, by topic: `page.py` writes it down, `tests/pages` runs it."""

from __future__ import annotations

from typing import Final

from dynamo.cli.compat.printed import engines, first_steps, network, own
from dynamo.cli.compat.printed.row import Row

TOPICS: Final[dict[str, tuple[Row, ...]]] = {
    "Installing": first_steps.INSTALLING,
    "A first model": first_steps.FIRST_MODEL,
    "A distributed system": network.DISTRIBUTED,
    "Network names": network.NAMES,
    "Routing, migration, cancellation": network.ROUTING,
    "llama.cpp": engines.LLAMA_CPP,
    "SGLang": engines.SGLANG,
    "vLLM": engines.VLLM,
    "TensorRT-LLM": engines.TRTLLM,
    "Echoes and mocker": engines.SIMULATED,
    "Batches": own.BATCH,
    "An engine of one's own": own.OWN_ENGINE,
    "A program of one's own": own.PROGRAMS,
    "Debugging": own.DEBUGGING,
}
ROWS: Final = tuple(row for rows in TOPICS.values() for row in rows)
