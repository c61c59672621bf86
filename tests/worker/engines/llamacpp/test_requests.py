"""What llama.cpp's chunks say, and what they leave out."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dynamo.llm.protocols import EOS, LENGTH, STOP, PreprocessedRequest, SamplingOptions, StopConditions
from dynamo.runtime.errors import EngineError, InvalidArgument
from dynamo.worker.engines.llamacpp.calls import CallSequence
from dynamo.worker.engines.llamacpp.requests import (
    Chunk,
    ChunkReader,
    CompletionPhase,
    completion,
    read_chunk,
    wishes,
)
from dynamo.worker.engines.support.request_checks import UNKNOWN_LOGPROB, stop_reasons

VOCABULARY = {1: b"\xf0", 2: b"\x93", 3: b"\x80", 9: b" Berlin"}
BYTE_IDS = {0xF0: 1, 0x93: 2, 0x80: 3}


class Known:
    """A vocabulary of four tokens."""

    def token_bytes(self, token_id: int) -> bytes:
        return VOCABULARY.get(token_id, b"")

    def byte_id(self, byte: int) -> int:
        return BYTE_IDS[byte]


def reader(logprobs: int | None = None) -> ChunkReader:
    return ChunkReader(Known(), logprobs)


def chunk(entries: list[dict[str, Any]], finish: str | None = None, **more: Any) -> Chunk:
    """As llama.cpp writes it where log probabilities are wanted, and where tokens are."""
    text = b"".join(bytes(entry["bytes"]) for entry in entries).decode()
    choice = {"text": text, "index": 0, "logprobs": {"content": entries}, "finish_reason": finish}
    return sent({"choices": [choice], "__verbose": {"tokens": [entry["id"] for entry in entries]}, **more})


def sent(body: dict[str, Any]) -> Chunk:
    return read_chunk(msgspec.json.encode(body))


def body_of(asked: PreprocessedRequest, tokens: list[int], phase: CompletionPhase) -> dict[str, Any]:
    """What llama.cpp reads, which computes four tokens of a prompt at once."""
    return dict(json.loads(completion(wishes(asked), tokens, phase, 4)))


def request(**stop: Any) -> PreprocessedRequest:
    return PreprocessedRequest(model="m", token_ids=[1, 2], stop_conditions=StopConditions(**stop))


def test_a_token_is_its_id() -> None:
    """An ordinary chunk names its one token."""
    piece = reader().read(chunk([{"id": 9, "bytes": list(b" Berlin"), "logprob": -1.0}]))
    assert (piece.ids, piece.extras, piece.finish) == ([9], None, None)


def test_held_back_bytes_are_rebuilt() -> None:
    """The tokens inside a character, which llama.cpp never names, come before the one that completes it."""
    entry = {"id": 3, "bytes": [0xF0, 0x93, 0x80, 0x80], "logprob": -0.5, "top_logprobs": [{"id": 3, "logprob": -0.5}]}
    assert reader().read(chunk([entry])).ids == [1, 2, 3, 3]
    piece = reader(logprobs=1).read(chunk([entry]))
    assert piece.ids == [1, 2, 3, 3]
    assert piece.extras is not None
    assert piece.extras["log_probs"] == [UNKNOWN_LOGPROB] * 3 + [-0.5]
    assert piece.extras["top_logprobs"] == [[], [], [], [[3, -0.5]]]


@pytest.mark.parametrize(("said", "reason"), [("stop", EOS), ("length", LENGTH)])
def test_the_last_chunk(said: str, reason: str) -> None:
    """The last chunk has the finish reason and the tokens that came from the cache."""
    last = chunk([], said, usage={"prompt_tokens_details": {"cached_tokens": 7}})
    assert reader().read(last) == ([], {"cached_tokens": 7}, reason)


def calls(room: int = 100, **stop: Any) -> list[CompletionPhase]:
    """The calls of a request that gets a token for each that it may have."""
    sequence = CallSequence(request(**stop), room, reader())
    made = []
    while phase := sequence.next_call():
        made.append(phase)
        for _ in range(phase.max_tokens):
            sequence.hear(chunk([{"id": 9, "bytes": list(b" Berlin"), "logprob": -1.0}]), phase)
        sequence.hear(chunk([], "length"), phase)
    assert sequence.end is not None
    assert sequence.end.reason == LENGTH
    return made


def test_min_tokens_is_a_call_without_eos() -> None:
    """`min_tokens` runs first with EOS off; without it there is one call."""
    assert calls(max_tokens=10) == [CompletionPhase(10, False)]
    assert calls(max_tokens=10, min_tokens=4) == [CompletionPhase(4, True, last=False), CompletionPhase(6, False)]
    assert calls(max_tokens=3, min_tokens=4) == [CompletionPhase(3, True, last=False)]
    assert calls(max_tokens=10, min_tokens=4, ignore_eos=True) == [CompletionPhase(10, True)]
    assert calls() == [CompletionPhase(100, False)]


def test_a_tail_that_was_held_back_is_asked_for_again() -> None:
    """llama.cpp names no tokens of a character that its last one leaves unfinished: then a few more are asked for."""
    sequence = CallSequence(request(max_tokens=3), 100, reader())
    first = sequence.next_call()
    assert first == CompletionPhase(3, False)
    token = {"id": 9, "bytes": list(b" Berlin"), "logprob": -1.0}
    assert sequence.hear(chunk([token]), first) == ([9], None)
    assert sequence.hear(chunk([], "length"), first) == ([], None)
    again = sequence.next_call()
    assert (again, sequence.tokens) == (CompletionPhase(5, False), [1, 2, 9])
    assert again is not None
    whole = {"id": 3, "bytes": [0xF0, 0x93, 0x80, 0x80], "logprob": -0.5}
    assert sequence.hear(chunk([whole]), again) == ([1, 2], None)
    assert sequence.end == (LENGTH, None)


def test_sampling_is_passed_under_their_names() -> None:
    """What the client gave is passed, what it did not is left to llama.cpp."""
    asked = request(max_tokens=5)
    asked.sampling_options = SamplingOptions(temperature=0.5, repetition_penalty=1.1, logit_bias={"7": -3.0})
    body = body_of(asked, [1, 2, 3], CompletionPhase(5, False))
    assert (body["prompt"], body["n_predict"]) == ([1, 2, 3], 5)
    assert (body["temperature"], body["repeat_penalty"], body["logit_bias"]) == (0.5, 1.1, [[7, -3.0]])
    assert "top_p" not in body


def test_log_probabilities_are_computed_where_they_are_wanted() -> None:
    """They cost llama.cpp a sort of the vocabulary for each token; without them it names tokens for nothing."""
    asked = request(max_tokens=5)
    named = body_of(asked, [1], CompletionPhase(5, False))
    assert (named["return_tokens"], named["verbose"], "logprobs" in named) == (True, True, False)
    for wanted, least in ((0, 1), (1, 1), (3, 3)):
        asked.output_options.logprobs = wanted
        body = body_of(asked, [1], CompletionPhase(5, False))
        assert (body["logprobs"], "verbose" in body) == (least, False)


def test_progress_names_no_token() -> None:
    """While a prompt is computed there is a chunk that has a token's place, and no token."""
    progress = {"total": 9, "cache": 5, "processed": 9}
    before = chunk([], prompt_progress=progress, __verbose={"tokens": [0], "content": ""})
    assert reader().read(before) == ([], None, None)


def test_cached_tokens_are_told_once_with_the_first_token() -> None:
    """The count is known before any output, and a second phase doesn't count the first one's answer as prompt."""
    stream = reader()
    token = {"id": 9, "bytes": list(b" Berlin"), "logprob": -1.0}
    assert stream.read(chunk([], prompt_progress={"total": 9, "cache": 5, "processed": 5})).extras is None
    assert stream.read(chunk([token])).extras == {"cached_tokens": 5}
    assert stream.read(chunk([], "length", usage={"prompt_tokens_details": {"cached_tokens": 5}})).extras is None
    assert stream.read(chunk([], prompt_progress={"total": 12, "cache": 11, "processed": 11})).extras is None
    assert stream.read(chunk([token])).extras is None


def test_short_prompts_have_no_progress() -> None:
    """Between the steps of a long one a cancel can be told; a short one is told what was cached with its tokens."""
    short, long = (body_of(request(), [1] * count, CompletionPhase(5, False)) for count in (4, 5))
    assert (short.get("timings_per_token"), short.get("return_progress")) == (True, None)
    assert (long.get("timings_per_token"), long.get("return_progress")) == (None, True)
    stream = reader()
    tokens = [chunk([{"id": 9, "bytes": list(b" Berlin"), "logprob": -1.0}], timings={"cache_n": n}) for n in (5, 8)]
    assert [stream.read(token).extras for token in tokens] == [{"cached_tokens": 5}, None]


def test_stop_ids_have_their_reasons() -> None:
    """EOS ids end unless ignored; a stop id ends always, and wins where it is both."""
    asked = request(stop_token_ids=[5, 6])
    asked.eos_token_ids = [6, 7]
    assert stop_reasons(asked) == {5: STOP, 6: STOP, 7: EOS}
    asked.stop_conditions.ignore_eos = True
    assert stop_reasons(asked) == {5: STOP, 6: STOP}


def test_logit_bias_must_name_tokens() -> None:
    """A key that is no token id is the caller's mistake, refused before any output."""
    asked = request(max_tokens=1)
    asked.sampling_options = SamplingOptions(logit_bias={"Paris": 1.0})
    with pytest.raises(InvalidArgument, match="'Paris'"):
        wishes(asked)


@pytest.mark.parametrize(("code", "kind"), [(400, InvalidArgument), (500, EngineError)])
def test_errors_keep_their_kind(code: int, kind: type[Exception]) -> None:
    """A 400 is the caller's mistake, anything else the engine's."""
    with pytest.raises(kind, match="too long"):
        sent({"error": {"code": code, "message": "too long", "type": "x"}})


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"choices": [{}]}', b'{"choices": [{"text": 1}]}', b'{"choi'])
def test_what_is_no_chunk(data: bytes) -> None:
    """It is an error that shows it; an exception of any other kind would end the stream without a word."""
    with pytest.raises(EngineError, match=r"llama\.cpp"):
        read_chunk(data)


def test_a_token_without_a_name() -> None:
    """A llama.cpp that doesn't name tokens can't be served by their ids."""
    with pytest.raises(EngineError, match="doesn't name its tokens"):
        reader().read(sent({"choices": [{"text": "a"}]}))
