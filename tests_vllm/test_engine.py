"""vLLM through its adapter: the same answers as without it, what it tells beside tokens, and what it frees."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.waiting import until
from tests.worker.engine_rigs import PROMPT, Recorder, Rig

from dynamo.llm.protocols import LENGTH, OutputOptions, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engine import EngineFacts, KvCaching, Measuring
from dynamo.worker.engines import create_engine
from dynamo.worker.settings import WorkerSettings

PROMPTS = [f"{number}. {PROMPT}" for number in range(16)]


async def directly(rig: Rig, prompt: str, max_tokens: int, **more: Any) -> Any:
    """vLLM's own answer: text in, text out, by its own tokenizer."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    final = RequestOutputKind.FINAL_ONLY
    params = SamplingParams(**{"temperature": 0.0, **more}, max_tokens=max_tokens, output_kind=final)
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


def test_options_mean_what_they_mean_to_vllm(run: Any) -> None:
    """All at once: each answer is that to vLLM's own parameters of the same names; most of them change it."""
    drawn = {"temperature": 1.5, "seed": 5}
    sampled: list[dict[str, Any]] = [
        drawn, {**drawn, "seed": 6}, {**drawn, "top_p": 0.3}, {**drawn, "top_k": 3}, {**drawn, "min_p": 0.3},
        {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 1.9},
        {**drawn, "frequency_penalty": 1.0, "top_p": 0.9},
    ]  # fmt: skip

    async def body(rig: Rig) -> None:
        plain = list((await directly(rig, PROMPT, 12)).outputs[0].token_ids)
        stop = plain[3]
        ends: list[dict[str, Any]] = [
            {"stop_token_ids": [stop]}, {"stop_token_ids": [stop], "min_tokens": 8}, {"ignore_eos": True},
        ]  # fmt: skip
        sinks = []
        for options in [*sampled, {"logit_bias": {str(stop): 50}}]:
            request = rig.request(max_tokens=12)
            for name, value in options.items():
                setattr(request.sampling_options, name, value)
            sinks.append(Recorder())
            rig.engine.submit(request, sinks[-1])
        sinks += [rig.submit(max_tokens=12, **options)[0] for options in ends]
        theirs = [*sampled, {"logit_bias": {stop: 50.0}}, *ends]
        for sink, options in zip(sinks, theirs, strict=True):
            await sink.end()
            told = (await directly(rig, PROMPT, 12, **options)).outputs[0]
            assert sink.produced == list(told.token_ids), options
        assert len({tuple(sink.produced) for sink in sinks}) > len(sinks) / 2

    run(body)


def test_what_it_knows_of_itself(run: Any) -> None:
    async def body(rig: Rig) -> None:
        facts: EngineFacts = rig.engine.facts
        assert facts.context_length == 1024
        assert (facts.max_num_seqs, facts.max_num_batched_tokens, facts.data_parallel_size) == (16, 128, 1)
        assert facts.kv_events
        assert facts.images is None
        assert facts.kv_cache_block_size
        assert facts.total_kv_blocks
        assert isinstance(rig.engine, KvCaching)
        assert isinstance(rig.engine, Measuring)

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
        extras = [extra for extra in sink.extras if extra]
        chosen = [value for extra in extras for value in extra.get("log_probs", [])]
        tops = [value for extra in extras for value in extra.get("top_logprobs", [])]
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
