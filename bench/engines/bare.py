"""Engines without us: the least that a program which calls their Python interface itself has to do for one answer.

Each of them is asked of the engine that our adapter has loaded, so that both have the same one, and for the same
tokens; all stream. What comes back is counted: an answer of another length is no measurement.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from dynamo.worker.engines.mistralrs.requests import prompt_text


class Answers(NamedTuple):
    """What came."""

    tokens: int
    seconds: float
    """From the first question to the last answer; where one is asked after the other, the sum of each one's."""


class Bare(Protocol):
    """One engine."""

    async def streams(self, count: int, tokens: int) -> Answers:
        """`count` answers of `tokens` tokens at once."""

    async def one_by_one(self, count: int) -> Answers:
        """`count` answers of one token, one after the other."""

    def close(self) -> None: ...


class Blocking:
    """An engine whose calls block a thread: as many threads as there are streams, none of them ours."""

    def __init__(self, answer: Callable[[int], int], most: int) -> None:
        self._answer = answer
        self._threads = ThreadPoolExecutor(most)

    async def streams(self, count: int, tokens: int) -> Answers:
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        came = await asyncio.gather(*(loop.run_in_executor(self._threads, self._answer, tokens) for _ in range(count)))
        return Answers(sum(came), time.perf_counter() - began)

    async def one_by_one(self, count: int) -> Answers:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._in_turn, count)

    def _in_turn(self, count: int) -> Answers:
        began = time.perf_counter()
        return Answers(sum(self._answer(1) for _ in range(count)), time.perf_counter() - began)

    def close(self) -> None:
        self._threads.shutdown()


class LlamaCpp(Blocking):
    """llama.cpp's server core, by `handle_completions`."""

    def __init__(self, engine: Any, ids: list[int], tokenizer: Any, most: int) -> None:
        self._engine, self._ids = engine, ids
        super().__init__(self._one, most)

    def _one(self, tokens: int) -> int:
        body = {"prompt": self._ids, "n_predict": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        usage: dict[str, int] = {}

        def hear(chunk: dict[str, Any]) -> bool:
            usage.update(chunk.get("usage") or {})
            return False

        self._engine._server.handle_completions(body, hear)
        return usage.get("completion_tokens", 0)


class MistralRs(Blocking):
    """mistral.rs, by `send_chat_completion_request`; prompts come in one at a time, or it fails."""

    def __init__(self, engine: Any, ids: list[int], tokenizer: Any, most: int) -> None:
        self._engine, self._text = engine, prompt_text(tokenizer, ids, 0)
        self._entrance = threading.Lock()
        super().__init__(self._one, most)

    def _one(self, tokens: int) -> int:
        asked = self._engine._request(
            [{"role": "user", "content": self._text}], "default", max_tokens=tokens, temperature=0.0, stream=True,
            ignore_eos=True,
        )  # fmt: skip
        with self._entrance:
            stream = self._engine._runner.send_chat_completion_request(asked)
            first = next(stream)
        *_, last = itertools.chain([first], stream)
        return int(last.usage.completion_tokens)  # chunks are fewer: a token in the middle of a character has none


class Vllm:
    """vLLM, by `AsyncLLM.generate`, with token ids in and out."""

    def __init__(self, engine: Any, ids: list[int], tokenizer: Any, most: int) -> None:
        self._engine, self._ids = engine, ids
        self._names = itertools.count()

    async def _one(self, tokens: int) -> int:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        prompt = {"type": "token", "prompt_token_ids": self._ids}
        outputs = self._engine._llm.generate(prompt, params, f"bare-{next(self._names)}")
        return sum([len(output.outputs[0].token_ids) async for output in outputs])

    async def streams(self, count: int, tokens: int) -> Answers:
        began = time.perf_counter()
        came = await asyncio.gather(*(self._one(tokens) for _ in range(count)))
        return Answers(sum(came), time.perf_counter() - began)

    async def one_by_one(self, count: int) -> Answers:
        began = time.perf_counter()
        return Answers(sum([await self._one(1) for _ in range(count)]), time.perf_counter() - began)

    def close(self) -> None:
        """Nothing is kept."""


BARE: dict[str, Callable[[Any, list[int], Any, int], Bare]] = {
    "llamacpp": LlamaCpp, "mistralrs": MistralRs, "vllm": Vllm,
}  # fmt: skip
