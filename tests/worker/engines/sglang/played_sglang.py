"""SGLang's engine without its model: the calls that the adapter makes, answered in its shapes.

It counts upwards from the last token of the prompt, one token a step. `tests_sglang` compares the calls and what an
output is made of with the real package, which computes on GPUs only.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

CONTEXT = 64
PAGE = 16


class Arguments:
    """As `ServerArgs` when all is resolved."""

    def resolved_dict(self) -> dict[str, Any]:
        return {
            "page_size": PAGE,
            "dp_size": 1,
            "max_running_requests": 8,
            "host": "h",
            "disaggregation_bootstrap_port": 1,
        }


@dataclass
class EmbeddingReqInput:
    """As its own."""

    input_ids: list[int]
    rid: str
    dimensions: int | None = None


class ModelConfig:
    """As its own."""

    vocab_size, hidden_size, is_generation, is_matryoshka = 1000, 8, True, False


class Manager:
    """As its `TokenizerManager`."""

    model_config = ModelConfig()

    context_len = CONTEXT

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def generate_request(self, asked: EmbeddingReqInput, request: Any) -> AsyncIterator[dict[str, Any]]:
        """A vector that says how long the input is."""
        if asked.dimensions == self.model_config.hidden_size:
            raise ValueError("no such dimensions")
        await asyncio.sleep(0)
        aborted = asked.rid in self.aborted
        reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None} if aborted else None
        vector = [float(len(asked.input_ids)), *[0.0] * 7]
        yield {"embedding": vector, "meta_info": {"id": asked.rid, "finish_reason": reason}}

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        self.aborted.append(rid)


class Started:
    """As what the start of its schedulers gives."""

    def __init__(self) -> None:
        self.scheduler_infos = [{"max_total_num_tokens": 10 * PAGE}]
        self.over = threading.Event()

    def block_until_scheduler_exits(self) -> None:
        assert self.over.wait(30)


class Engine:
    """As `sglang.srt.entrypoints.engine.Engine`."""

    made: Engine
    """The newest."""
    refuses: Exception | None = None
    """What its calls raise."""
    gate: threading.Event | None = None
    """What each step but the first waits for."""

    def __init__(self, server_args: Any) -> None:
        self.server_args, self.tokenizer_manager = Arguments(), Manager()
        self._scheduler_init_result = Started()
        self.calls: list[dict[str, Any]] = []
        self.shut_down = False
        type(self).made = self

    def shutdown(self) -> None:
        self.shut_down = True
        self._scheduler_init_result.over.set()

    async def async_generate(self, **asked: Any) -> AsyncIterator[dict[str, Any]]:
        self.calls.append(asked)
        if self.refuses is not None:
            raise self.refuses
        return self._stream(asked)

    async def _stream(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        sampling = asked["sampling_params"]
        ends = set() if sampling["ignore_eos"] else {*sampling.get("stop_token_ids", ())}
        token = asked["input_ids"][-1]
        for step in range(sampling["max_new_tokens"]):
            while step and self.gate is not None and not self.gate.is_set():  # noqa: ASYNC110 - another thread's
                await asyncio.sleep(0.001)
            token += 1
            reason: dict[str, Any] | None = None
            if asked["rid"] in self.tokenizer_manager.aborted:
                reason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
            elif token in ends:
                reason = {"type": "stop", "matched": token}
            elif step + 1 == sampling["max_new_tokens"]:
                reason = {"type": "length", "length": step + 1}
            yield {"output_ids": [token], "meta_info": _about(asked, token, reason)}
            if reason is not None:
                return
            await asyncio.sleep(0)


def _about(asked: dict[str, Any], token: int, reason: dict[str, Any] | None) -> dict[str, Any]:
    about: dict[str, Any] = {"id": asked["rid"], "finish_reason": reason, "cached_tokens": 2}
    if asked.get("return_logprob"):
        top = [(-0.5, token, None)] * asked["top_logprobs_num"]
        about |= {"output_token_logprobs": [(-0.5, token, None)], "output_top_logprobs": [top]}
    return about
