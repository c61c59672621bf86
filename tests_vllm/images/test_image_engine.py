"""Images through vLLM's adapter: for each family answers and counts are vLLM's own, and caches tell images apart."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import msgspec
import pytest
from PIL import Image
from tests.fixtures_nats import NatsServer
from tests.frontend.images.samples import png
from tests.frontend.routing.kv_reader import Site
from tests.waiting import until
from tests.worker.engine_rigs import PROMPT, RIGS, VLLM, Kind, Recorder, Rig, Run, shared
from tests_vllm.images.tiny_vision_model import FAMILIES, write

from dynamo.frontend.images.parts import ImageRef, measured
from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvRouting
from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.llm.kv.image_blocks import cached_prompt
from dynamo.llm.processing.preprocess import Preprocessor
from dynamo.llm.protocols import CACHED_TOKENS, LENGTH, LOG_PROBS, PROMPT_TOKENS, PreprocessedRequest
from dynamo.runtime.errors import InvalidArgument

COUNTED: Final = ("qwen2_vl", "llava")
"""Families whose images frontends count by themselves."""
TEXT: Final = PROMPT * 3
SIZES: Final = ((100, 80), (1, 1), (3, 2), (500, 40), (500, 12), (1000, 700))


@pytest.fixture(scope="module", params=list(FAMILIES))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a coroutine function with the engine of one family, which all tests share."""
    name = f"vllm-{request.param}"
    RIGS[name] = Kind("vllm", lambda folder: write(folder / "seer", request.param), VLLM, real=True, apart=True)
    with shared() as rig_of:
        yield rig_of(name)


async def asked(rig: Rig, *images: bytes, text: str = TEXT, **more: Any) -> PreprocessedRequest:
    """Return the request that a frontend makes of a chat."""
    facts = rig.engine.facts
    card = msgspec.structs.replace(rig.model.card, images=facts.images, context_length=facts.context_length)
    inputs = [measured(ImageRef("", "messages"), data, 1 << 30) for data in images]
    content = [*({"type": "image_url"} for _ in images), {"type": "text", "text": text}]
    body = {
        "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8, "ignore_eos": True,
        "logprobs": True, **more,
    }  # fmt: skip
    (request,) = await Preprocessor.load(card, rig.model.files).chat(body, images=inputs)
    return request


async def answered(rig: Rig, request: PreprocessedRequest) -> Recorder:
    """Return what the engine made of a request."""
    sink = Recorder()
    rig.engine.submit(request, sink)
    assert await sink.end() == LENGTH, sink.ends
    return sink


async def directly(rig: Rig, request: PreprocessedRequest) -> Any:
    """Return vLLM's own output for the same text, by its own tokenizer, with the same images as Pillow reads them."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    images = [Image.open(io.BytesIO(image.data)).convert("RGB") for image in request.images or ()]
    prompt = {
        "prompt": rig.tokenizer.decode(request.token_ids, skip_special=False), "multi_modal_data": {"image": images},
    }  # fmt: skip
    params = SamplingParams(
        temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY
    )
    (output,) = [final async for final in rig.engine._llm.generate(prompt, params, f"direct-{Random().random()}")]
    return output


def drawn(width: int, height: int, seed: int) -> bytes:
    """Return an image of random pixels."""
    file = io.BytesIO()
    Image.frombytes("RGB", (width, height), Random(seed).randbytes(3 * width * height)).save(file, "PNG")
    return file.getvalue()


def chosen(sink: Recorder) -> list[float]:
    """Return the log probabilities of an answer's tokens."""
    return [value for extras in sink.extras if extras for value in extras.get(LOG_PROBS, [])]


def first(sink: Recorder) -> dict[str, Any]:
    """Return what came with the first token."""
    extras = sink.extras[0]
    assert extras is not None
    return extras


@pytest.mark.parametrize("size", SIZES)
def test_answers_and_counts_are_those_of_vllm_itself(run: Run, size: tuple[int, int]) -> None:
    """Greedy, for images of each size: token ids, log probabilities and the prompt's length."""

    async def body(rig: Rig) -> None:
        request = await asked(rig, drawn(*size, 3))
        sink, told = await answered(rig, request), await directly(rig, request)
        assert sink.produced == list(told.outputs[0].token_ids)
        theirs = [at[token].logprob for at, token in zip(told.outputs[0].logprobs, sink.produced, strict=True)]
        assert chosen(sink) == pytest.approx(theirs, abs=1e-4)
        assert first(sink)[PROMPT_TOKENS] == len(told.prompt_token_ids)
        if rig.name.removeprefix("vllm-") in COUNTED:
            assert request.prompt_tokens == len(told.prompt_token_ids)

    run(body)


def test_two_images_are_two_answers(run: Run) -> None:
    """The model sees them: other log probabilities and nothing cached behind the image; the same again is cached."""

    async def body(rig: Rig) -> None:
        text = f"Nobody else asks this. {TEXT}"
        one, other = drawn(100, 80, 1), drawn(100, 80, 2)
        sinks = [await answered(rig, await asked(rig, image, text=text)) for image in (one, other, one)]
        scores = [chosen(sink) for sink in sinks]
        assert scores[0] != pytest.approx(scores[1], abs=1e-4)
        assert scores[0] == pytest.approx(scores[2], abs=1e-4)
        size, told = rig.engine.facts.kv_cache_block_size, first(sinks[2])
        assert [first(sink)[CACHED_TOKENS] for sink in sinks[:2]] == [0, 0]
        assert told[CACHED_TOKENS] == (told[PROMPT_TOKENS] - 1) // size * size > 0
        pair, turned = await asked(rig, one, other), await asked(rig, other, one)
        sink = await answered(rig, pair)
        assert chosen(sink) != pytest.approx(chosen(await answered(rig, turned)), abs=1e-4)
        assert sink.produced == list((await directly(rig, pair)).outputs[0].token_ids)

    run(body)


def test_what_vllm_caches_has_the_names_of_a_router(run: Run, nats_server: NatsServer) -> None:
    """vLLM's KV events with an image arrive in a router's index as the blocks that a frontend names."""

    async def body(rig: Rig) -> None:
        facts = rig.engine.facts
        size = facts.kv_cache_block_size
        site = Site(nats_server)
        site_worker, reader = await site.worker(), await site.reader()
        reader.routing = KvRouting(KvOptions(), size, Random(1), lambda: 0.0)
        try:
            rig.engine.on_kv(site_worker.publisher.step)
            reader.join(site_worker.key, kv_cache_block_size=size, total_kv_blocks=facts.total_kv_blocks)
            asks = [await asked(rig, png(100, 80, shade), text=f"{TEXT} {TEXT}") for shade in (11, 12)]
            names = [names_of(request, size) for request in asks]
            assert len(set(names[0])) == len(names[0]) >= 3
            assert not {*names[0]} & {*names[1]}
            ends = [first(await answered(rig, request))[PROMPT_TOKENS] // size for request in asks]
            index = site_worker.key
            await until("both prompts are in the index", lambda: len(reader.holds(index)) >= sum(ends), 60)
            if rig.name.removeprefix("vllm-") in COUNTED:
                assert reader.holds(index) >= {*names[0], *names[1]}
        finally:
            await rig.engine._native.stop()
            await site.close()

    run(body)


def names_of(request: PreprocessedRequest, size: int) -> list[int]:
    """Return the names of a prompt's blocks, as a frontend's router makes them."""
    prompt = cached_prompt(request, size)
    return sequence_hashes(block_hashes(prompt.tokens, size, media=prompt.media))


def test_what_can_not_be_taken_is_the_clients_mistake(run: Run) -> None:
    """A broken image, one that no processor resizes, and a prompt that the image makes too long."""

    async def refused(rig: Rig, request: PreprocessedRequest) -> str:
        sink = Recorder()
        rig.engine.submit(request, sink)
        error = await sink.end()
        assert isinstance(error, InvalidArgument), repr(error)
        return str(error)

    async def body(rig: Rig) -> None:
        broken = png(100, 80)
        broken = broken[: len(broken) // 2]
        assert "images[0] can't be decoded" in await refused(rig, await asked(rig, broken))
        request = await asked(rig, png(100, 80, 77))
        assert request.images is not None
        request.images[0].tokens = 1
        room = rig.engine.facts.context_length - len(request.token_ids) - 1
        request.token_ids += [300] * room
        assert "1024" in await refused(rig, request)
        # vLLM's processor knows that image now, and its core has never heard of it.
        assert (await answered(rig, await asked(rig, png(100, 80, 77)))).produced

    run(body)


def test_an_abort_ends_a_request_with_an_image(run: Run) -> None:
    """While its image is prepared, and while it runs; whoever sends the same image next is answered."""

    async def body(rig: Rig) -> None:
        soon, sink = await asked(rig, png(300, 300, 1)), Recorder()
        rig.engine.submit(soon, sink)()
        late, running = await asked(rig, png(300, 300, 2), max_tokens=600), Recorder()
        abort = rig.engine.submit(late, running)
        await running.until(2)
        abort()
        await until("none runs", lambda: rig.engine._llm.get_num_unfinished_requests() == 0, 60)
        await until("its blocks are free", lambda: rig.engine.load().used_kv_blocks == 0, 60)
        assert not sink.produced
        assert not sink.ends
        assert len(running.produced) < 600
        for request in (soon, late):
            short = msgspec.structs.replace(
                request, stop_conditions=msgspec.structs.replace(request.stop_conditions, max_tokens=8)
            )
            assert (await answered(rig, short)).produced == list((await directly(rig, short)).outputs[0].token_ids)

    run(body)


def test_aborts_cost_other_requests_nothing(run: Run) -> None:
    """Images that vLLM prepared for requests which left are sent to its core for those that came with them."""

    async def body(rig: Rig) -> None:
        random, asks = Random(3), [await asked(rig, drawn(60 + 10 * seed, 80, 100 + seed)) for seed in range(12)]
        waited: list[tuple[int, Recorder]] = []
        for _ in range(60):
            number, sink = random.randrange(len(asks)), Recorder()
            abort = rig.engine.submit(asks[number], sink)
            if random.random() < 0.4:
                await asyncio.sleep(random.random() / 100)
                abort()
            else:
                waited.append((number, sink))
        assert {str(await sink.end()) for _, sink in waited} == {LENGTH}
        answers = {(number, tuple(sink.produced)) for number, sink in waited}
        assert len(answers) == len({number for number, _ in waited}) > 8

    run(body)


def test_the_rest_of_an_answer_is_the_same_elsewhere(run: Run) -> None:
    """A request that goes on behind tokens of its answer, as after a lost worker, makes the same tokens."""

    async def body(rig: Rig) -> None:
        request = await asked(rig, png(100, 80, 55), max_tokens=16)
        whole = (await answered(rig, request)).produced
        rest = msgspec.structs.replace(request, token_ids=[*request.token_ids, *whole[:8]], answered_tokens=8)
        rest.stop_conditions = msgspec.structs.replace(rest.stop_conditions, max_tokens=8)
        sink = await answered(rig, rest)
        assert sink.produced == whole[8:]
        assert first(sink)[PROMPT_TOKENS] == first(await answered(rig, request))[PROMPT_TOKENS]

    run(body)
