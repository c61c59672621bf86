"""TensorRT-LLM in process (`tensorrt_llm.LLM`): tokens in, tokens out, on its PyTorch backend.

Its executor has processes of its own; what it answers comes through a queue of the loop that asked, so requests are
asked from the worker's loop. Over several nodes it runs on MPI: `mpirun` starts the worker as rank 0
(`requests.lines`), which for us is a worker like any other.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from dynamo.llm.protocols import PreprocessedRequest
from dynamo.runtime.errors import DynamoException, EngineError, InvalidArgument
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.process.tasks import TaskOwner
from dynamo.worker.engine import Abort, EngineFacts, EngineLoad, Sink, nothing_wanted
from dynamo.worker.engines.support.loop_bridge import aside
from dynamo.worker.engines.support.open_requests import OpenRequests
from dynamo.worker.engines.support.request_checks import check_ids
from dynamo.worker.engines.trtllm.requests import llm_arguments, read, sampling_arguments

if TYPE_CHECKING:
    from dynamo.llm import LocalModel
    from dynamo.worker.settings import WorkerSettings

log = logging.getLogger(__name__)
INSTALL: Final = f"{install_hint('trtllm')}, with NVIDIA's package index, on a machine with a CUDA GPU"
_STOP_SECONDS: Final = 60.0
_CONTEXT: Final = 8192
"""Tokens, where neither the model nor the user says."""


class _Job:
    """One request, and TensorRT-LLM's handle of it."""

    def __init__(self, request: PreprocessedRequest, result: Any) -> None:
        self.request, self.result = request, result


class TrtLlm:
    """Run TensorRT-LLM in this process.

    Engine arguments: those of `tensorrt_llm.LLM`, as a YAML file of `trtllm-serve` has them.
    """

    def __init__(self, settings: WorkerSettings, model: LocalModel) -> None:
        if model.path is None or not model.path.is_dir():
            raise InvalidArgument("engine trtllm needs --model-path with a checkout (hf://ORG/REPO or a folder)")
        if settings.role != "aggregated":
            raise InvalidArgument(f"--role {settings.role} is not there for engine trtllm: use aggregated")
        self._made = llm_arguments(settings, str(model.path), settings.arguments())
        self._context = int(self._made.get("max_seq_len") or model.card.context_length or _CONTEXT)
        self._made["max_seq_len"] = self._context
        self._vocabulary = model.card.vocab_size
        self._llm: Any = None
        self._sampling: Any = None
        self._open: OpenRequests[_Job] = OpenRequests()
        self._background = TaskOwner(log)

    async def start(self) -> EngineFacts:
        self._death: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._llm = await aside(self._load, "trtllm-load")
        return EngineFacts(
            context_length=self._context, kv_cache_block_size=int(self._made["kv_cache_config"]["tokens_per_block"]),
            max_num_seqs=self._made.get("max_batch_size"), max_num_batched_tokens=self._made.get("max_num_tokens"),
        )  # fmt: skip

    def _load(self) -> Any:
        try:
            from tensorrt_llm import LLM, SamplingParams
        except Exception as error:  # packages for GPUs fail in many ways where there is none
            raise InvalidArgument(f"engine trtllm can't be loaded ({error}): {INSTALL}") from error
        self._sampling = SamplingParams
        try:
            return LLM(**self._made)
        except (ValueError, TypeError) as error:  # pydantic's are among them
            raise InvalidArgument(f"TensorRT-LLM refuses its arguments: {error}") from error
        except Exception as error:  # whatever its start raises is the worker's answer
            raise InvalidArgument(f"TensorRT-LLM can't start: {type(error).__name__}: {error}") from error

    async def failed(self) -> BaseException:
        return await asyncio.shield(self._death)

    async def stop(self) -> None:
        for job in self._open.end_all():
            job.result.abort()
        self._background.cancel()
        await self._background.ended()
        llm, self._llm = self._llm, None
        if llm is not None:
            await self._shut_down(llm)

    async def _shut_down(self, llm: Any) -> None:
        ending = aside(llm.shutdown, "trtllm-shutdown")
        await asyncio.wait([ending], timeout=_STOP_SECONDS)
        if not ending.done():
            log.warning("TensorRT-LLM did not end within %g s: the process ends without it", _STOP_SECONDS)
        elif (error := ending.exception()) is not None:
            log.warning("TensorRT-LLM did not end well: %s: %s", type(error).__name__, error)

    def load(self) -> EngineLoad:
        return EngineLoad(running=len(self._open))

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort:
        sampling = sampling_arguments(request, self._open.room(request, self._context))
        check_ids(request, self._vocabulary)
        if sampling["max_tokens"] == 0:
            return nothing_wanted(sink)
        try:
            result = self._llm.generate_async(request.token_ids, self._sampling(**sampling), streaming=True)
        except (ValueError, TypeError) as error:  # what its checks of a request raise
            raise InvalidArgument(f"TensorRT-LLM: {error}") from error
        job = _Job(request, result)
        self._open.add(job, sink)
        self._background.start(self._answer(job), "a request of TensorRT-LLM")
        return lambda: self._drop(job)

    async def _answer(self, job: _Job) -> None:
        try:
            async for output in job.result:
                if self._open.hand(job, read(output.outputs[0], job.request)):
                    return
            raise EngineError("TensorRT-LLM ended the request without a reason")
        except DynamoException as error:
            self._open.fail(job, error)
        except Exception as error:  # belongs to this request, whatever the engine raises
            self._open.fail(job, EngineError(f"TensorRT-LLM: {type(error).__name__}: {error}"))
            if self._llm is None or getattr(self._llm, "_executor", None) is None:
                _set(self._death, error)

    def _drop(self, job: _Job) -> None:
        """Have the engine forget it; may be called at any time."""
        if self._open.drop(job):
            job.result.abort()


def _set(death: asyncio.Future[BaseException], error: BaseException) -> None:
    if not death.done():
        death.set_result(error)
