"""mistral.rs' own: each trap of its interface, what it is asked, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worker.chain_model import BOS, TOKENS, continuation, ids
from tests.worker.engine_rigs import Recorder, Rig, Run, alone, opened, shared

from dynamo.llm.protocols import LENGTH, PreprocessedRequest, SamplingOptions
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines import create_engine
from dynamo.worker.engines.mistralrs.requests import (
    TokenReader,
    guided,
    options,
    plain_tokenizer,
    prompt_text,
    wishes,
)
from dynamo.worker.settings import WorkerSettings

BOTH = ["mistralrs", "mistralrs-safetensors"]


@pytest.fixture(scope="module")
def together() -> Iterator[Callable[[str], Run]]:
    with shared() as rig:
        yield rig


@pytest.fixture(params=BOTH)
def run(request: pytest.FixtureRequest, together: Callable[[str], Run]) -> Run:
    """Runs a coroutine function with a started engine, on a GGUF file and on safetensors."""
    return together(request.param)


def test_prompts_are_the_frontends_tokens(run: Run) -> None:
    """Traps 1 and 3: texts of every kind are, inside the engine, the very ids that were asked for."""

    async def body(rig: Rig) -> None:
        for text in ("plain", "  two  spaces ", "{{ braces }} {% if %}", "\n\nlines\n", "é🦜 好", "<s>x</s>", "\0"):
            prompt = rig.tokenizer.encode(text)
            again = prompt_text(rig.engine._tokenizer, prompt, 0)
            assert rig.engine._runner.tokenize_text(again, False, None) == prompt, text
            sink, _ = rig.submit(prompt=text + "k", max_tokens=2)
            assert (await sink.end(), sink.produced) == (LENGTH, ids("lm")), text

    run(body)


def test_a_leading_space_stays(run: Run) -> None:
    """mistral.rs takes spaces from the beginning of a stream's text; the token has them still."""

    async def body(rig: Rig) -> None:
        sink, _ = rig.submit(prompt="z", max_tokens=2)
        await sink.end()
        assert rig.tokenizer.decode(sink.produced) == " A"

    run(body)


def test_the_prefix_cache_is_off() -> None:
    """Trap 5: streams at once collapse with it; whoever wants it says so."""
    rig = Rig("mistralrs")
    assert rig.engine._given["prefix_cache_n"] == 0


async def test_a_dropped_stream_is_cancelled_inside() -> None:
    """With room for one sequence, the next begins as soon as the first is cancelled, long before its end."""

    async def body(rig: Rig) -> None:
        first, abort = rig.submit(rig.endless(max_tokens=400))
        await first.until(2)
        abort()
        second, _ = rig.submit(max_tokens=2)
        assert await second.end() == LENGTH
        assert len(first.produced) < 200

    narrow = Rig("mistralrs").settings

    rig = Rig("mistralrs")
    rig.engine = create_engine(
        WorkerSettings(engine=narrow.engine, engine_args='{"max_seqs": 1, "max_waiting": 4}'), rig.model
    )
    await rig.engine.start()
    try:
        await body(rig)
    finally:
        await rig.engine.stop()


def test_quantised_while_it_loads() -> None:
    """`in_situ_quant` on safetensors: the same text from smaller weights; an unknown kind is named."""

    def settings(kind: str) -> WorkerSettings:
        return WorkerSettings(engine="mistralrs", engine_args=f'{{"in_situ_quant": "{kind}"}}')

    async def body(rig: Rig) -> None:
        await rig.engine.stop()
        rig.engine = create_engine(settings("Q8_0"), rig.model)
        await rig.engine.start()
        sink, _ = rig.submit(prompt="abc", max_tokens=4)
        assert (await sink.end(), sink.produced) == (LENGTH, continuation("c", 4))
        wrong: Any = create_engine(settings("Q99"), rig.model)
        with pytest.raises(InvalidArgument, match=r"mistral\.rs can't load"):
            await wrong.start()

    alone("mistralrs-safetensors")(body)


def test_drawn_tokens_are_known_by_their_bytes(run: Run) -> None:
    """At a temperature where anything may come, each token's text is that of some token, and is counted."""

    async def body(rig: Rig) -> None:
        request = rig.request(prompt="a", max_tokens=24, ignore_eos=True)
        request.sampling_options = SamplingOptions(temperature=2.0)
        sink = Recorder()
        rig.engine.submit(request, sink)
        assert await sink.end() == LENGTH
        assert 0 < len(sink.produced) <= 24
        assert all(0 <= token < len(TOKENS) for token in sink.produced)

    run(body)


def test_ids_that_no_text_has_are_refused() -> None:
    """A prompt of ids that the tokenizer would not make is said to be one; of an answer that goes on it isn't asked."""
    tokenizer = opened("mistralrs")[1]
    byte = TOKENS.index("<0x61>")
    with pytest.raises(InvalidArgument, match="send the text"):
        prompt_text(tokenizer, [BOS, byte], 0)
    assert prompt_text(tokenizer, [BOS, byte], 1) == "<s>a"
    with pytest.raises(InvalidArgument, match="send the text"):
        prompt_text(tokenizer, [BOS, TOKENS.index("<0xC3>")], 1)


def test_nothing_is_added_to_prompts() -> None:
    """What tokenizers put before a text (BOS, a space) and take away again is left out of the engine's copy."""
    space = {"type": "Prepend", "prepend": "\u2581"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    data: dict[str, Any] = {
        "post_processor": {"type": "TemplateProcessing"},
        "normalizer": {"type": "Sequence", "normalizers": [space, replace]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "prepend_scheme": "always"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " "}]},
    }
    data["model"] = {"vocab": {"<s>": 0, "\u2581": 1}}
    plain = json.loads(plain_tokenizer(json.dumps(data).encode()))
    assert plain["post_processor"] is None
    assert plain["normalizer"]["normalizers"] == [replace]
    assert plain["pre_tokenizer"]["pretokenizers"] == [{"type": "Metaspace", "prepend_scheme": "never"}]
    assert plain["decoder"]["decoders"] == [{"type": "Fuse"}]
    assert plain["model"] == data["model"]
    few = json.dumps({"normalizer": space, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}})
    plain = json.loads(plain_tokenizer(few.encode()))
    assert (plain["normalizer"], plain["decoder"]) == (None, None)
    assert plain["pre_tokenizer"]["add_prefix_space"] is False


def asked(**sampling: Any) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=[1], sampling_options=SamplingOptions(**sampling))


def test_what_is_asked() -> None:
    """What the client gave is passed, what it did not is left to mistral.rs; EOS is banned, not ignored."""
    arguments = options(wishes(asked(temperature=0.7, top_k=-1, logit_bias={"7": 2.0})), 5, [2])
    assert (arguments["max_tokens"], arguments["temperature"], arguments["logit_bias"]) == (
        5,
        0.7,
        {7: 2.0, 2: -1000.0},
    )
    assert "top_k" not in arguments
    greedy = options(wishes(asked(temperature=0.0)), 5)
    assert (options(wishes(asked()), 5)["logit_bias"], greedy["top_logprobs"]) == (None, 1)
    with pytest.raises(InvalidArgument, match="seed"):
        wishes(asked(temperature=0.7, seed=3))
    assert options(wishes(asked(temperature=0.0, seed=3)), 5)["max_tokens"] == 5


def test_constraints_in_its_words() -> None:
    """The four kinds; another one is refused by name."""
    schema = '{"enum": [1], "x-guidance": {"whitespace_flexible": false}}'
    assert guided({"json": {"enum": [1]}}) == {"grammar": schema, "grammar_type": "json_schema"}
    assert guided({"regex": "[0-9]"}) == {"grammar": "[0-9]", "grammar_type": "regex"}
    assert guided({"choice": ["a.b", "c"]}) == {"grammar": "a\\.b|c", "grammar_type": "regex"}
    assert guided({"grammar": 'start: "x"'}) == {"grammar": 'start: "x"', "grammar_type": "lark"}
    assert guided(None) == {}
    with pytest.raises(InvalidArgument, match="structural_tag"):
        guided({"structural_tag": "x"})


def test_a_token_that_the_model_has_not() -> None:
    """Bytes that no token has are the engine's mistake, not a guess."""
    reader = TokenReader(opened("mistralrs")[1])
    candidate = SimpleNamespace(token=TOKENS.index("b"))
    chunk = SimpleNamespace(bytes=list(b"b"), token="b", top_logprobs=[candidate])
    assert reader.token(chunk) == TOKENS.index("b")
    chunk.bytes, chunk.top_logprobs = [0xC3], []
    assert reader.token(chunk) == TOKENS.index("<0xC3>")
    chunk.bytes = list(b"zebra")
    with pytest.raises(EngineError, match="no token"):
        reader.token(chunk)
