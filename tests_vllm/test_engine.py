"""vLLM through its adapter: the same answers as without it, what it tells beside tokens, and what it frees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.waiting import until
from tests.worker.engine_rigs import PROMPT, Recorder, Rig

from dynamo.llm.protocols import LENGTH, OutputOptions, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath
from dynamo.worker.engine import EngineFacts, KvCaching, Measuring
from dynamo.worker.engines import create_engine
from dynamo.worker.metrics import WorkerMetrics
from dynamo.worker.settings import WorkerSettings

PROMPTS = [f"{number}. {PROMPT}" for number in range(16)]


async def directly(rig: Rig, prompt: str, max_tokens: int, **more: Any) -> Any:
    """vLLM's own answer: text in, text out, by its own tokenizer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    final = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, output_kind=final, **more)
    (output,) = [found async for found in rig.engine._llm.generate(prompt, params, f"direct-{prompt}")]
    return output


def test_answers_are_those_of_vllm_itself(run: Any) -> None:
    """Greedy, sixteen at once, token by token: ids and text are what vLLM gives to who calls it directly."""

    async def body(rig: Rig) -> None:
        sinks = [rig.submit(prompt=prompt, max_tokens=24)[0] for prompt in PROMPTS]
        for sink, prompt in zip(sinks, PROMPTS, strict=True):
            await sink.end()
            told = (await directly(rig, prompt, 24)).outputs[0]
            assert sink.produced == list(told.token_ids)
            assert rig.tokenizer.decode(sink.produced).rstrip("\N{REPLACEMENT CHARACTER}") == told.text
        assert len({tuple(sink.produced) for sink in sinks}) > 8, "random weights, yet all alike"

    run(body)


def test_what_it_knows_of_itself(run: Any) -> None:
    async def body(rig: Rig) -> None:
        facts: EngineFacts = rig.engine.facts
        assert facts.context_length == 1024
        assert (facts.max_num_seqs, facts.max_num_batched_tokens, facts.data_parallel_size) == (16, 128, 1)
        assert facts.kv_events
        assert facts.kv_cache_block_size
        assert facts.total_kv_blocks
        assert isinstance(rig.engine, KvCaching)

    run(body)


def test_log_probabilities(run: Any) -> None:
    """Of what was chosen and of the best; those of the prompt come first."""

    async def body(rig: Rig) -> None:
        request: PreprocessedRequest = rig.request(max_tokens=5, ignore_eos=True)
        request.output_options = OutputOptions(logprobs=3, prompt_logprobs=1)
        sink = Recorder()
        rig.engine.submit(request, sink)
        assert await sink.end() == LENGTH
        told = await directly(rig, PROMPT, 5, ignore_eos=True, logprobs=3, prompt_logprobs=1)
        extras = [found for found in sink.extras if found]
        chosen = [value for found in extras for value in found.get("log_probs", [])]
        tops = [value for found in extras for value in found.get("top_logprobs", [])]
        direct = told.outputs[0].logprobs
        assert chosen == pytest.approx([at[token].logprob for at, token in zip(direct, sink.produced, strict=True)])
        assert [[token for token, _ in top] for top in tops] == [
            sorted(at, key=lambda token: -at[token].logprob)[:3] for at in direct
        ]
        prompt = extras[0]["prompt_logprobs"]
        assert len(prompt) == len(request.token_ids)
        assert prompt[0] is None
        pairs = zip(request.token_ids[1:], told.prompt_logprobs[1:], strict=True)
        assert prompt[1:] == pytest.approx([at[token].logprob for token, at in pairs])

    run(body)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 3.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"guided_decoding": {"regex": "("}}, "regex"),
        ({"guided_decoding": {"choice": []}}, "Choice"),
    ],
)
def test_what_it_cant_do_is_the_callers_mistake(run: Any, options: dict[str, Any], said: str) -> None:
    """Whether vLLM finds it when asked or when it looks closer."""

    async def body(rig: Rig) -> None:
        request = rig.request(max_tokens=4)
        for name, value in options.items():
            setattr(request.sampling_options, name, value)
        sink = Recorder()
        try:
            rig.engine.submit(request, sink)
            error = await sink.end()
        except InvalidArgument as refused:
            error = refused
        assert isinstance(error, InvalidArgument), error
        assert said in str(error)
        assert sink.produced == []

    run(body)


def test_an_abort_frees_the_scheduler(run: Any) -> None:
    """Blocks and places of aborted requests are free by vLLM's own count, and the metrics say so."""

    async def body(rig: Rig) -> None:
        aborts = [rig.submit(prompt=prompt * 3, max_tokens=500, ignore_eos=True)[1] for prompt in PROMPTS[:6]]
        await until("six run", lambda: rig.engine.load().running == 6, 60)
        assert rig.engine.load().used_kv_blocks >= 6
        for abort in aborts:
            abort()
        await until("none runs", lambda: rig.engine.load().running == 0, 60)
        assert rig.engine.load().used_kv_blocks == 0
        assert rig.engine._llm.get_num_unfinished_requests() == 0

    run(body)


def test_its_metrics_are_ours(run: Any) -> None:
    """The worker's page has vLLM's metrics as vLLM keeps them, each name once."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(max_tokens=3, ignore_eos=True)
        await sink.end()
        engine: Any = rig.engine
        metrics = WorkerMetrics(EndpointPath.parse("dyn://a.b.c"), 1, "tiny")
        metrics.watch(engine)
        assert isinstance(engine, Measuring)
        page = generate_latest(metrics.registry).decode()
        kinds = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds))
        for name in ("vllm:num_requests_running", "vllm:time_to_first_token_seconds", "vllm:generation_tokens_total",
                     "vllm:prefix_cache_queries_total", "vllm:gpu_cache_usage_perc"):  # fmt: skip
            assert name in kinds
        name = rig.model.card.name
        assert f'vllm:time_to_first_token_seconds_count{{engine="0",model_name="{name}"}}' in page
        assert "python_info" not in page

    run(body)


@pytest.mark.parametrize(
    ("given", "flags", "said"),
    [
        ({"max_modl_len": 5}, {}, "'max_modl_len'; did you mean 'max_model_len'"),
        ({"dtype": "float7"}, {}, "dtype.*float7"),
        ({"gpu_memory_utilization": "much"}, {}, "gpu-memory-utilization.*much"),
        ({"max-num-seqs": -3}, {}, "max_num_seqs"),
        ({"compilation_config": {"nonsense": 1}}, {}, "nonsense"),
        ({}, {"context_length": 1 << 20}, "max_model_len|1048576"),
    ],
)
def test_bad_arguments_are_one_sentence(tiny: Any, given: dict[str, Any], flags: dict[str, Any], said: str) -> None:
    """vLLM's own parser and configuration judge them, before anything is started."""
    from dynamo.llm import open_model

    settings = WorkerSettings(engine="vllm", engine_args=json.dumps(given), **flags)
    engine = create_engine(settings, open_model(str(tiny)))

    async def main() -> None:
        try:
            with pytest.raises(InvalidArgument, match=said) as refused:
                await engine.start()
            assert "\n" not in str(refused.value)
        finally:
            await engine.stop()

    asyncio.run(main())
