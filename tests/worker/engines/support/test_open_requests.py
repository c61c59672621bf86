"""What engines say of requests reaches their sinks in order, and nothing after an end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.worker.engine_rigs import Recorder

from dynamo.llm.protocols import CACHED_TOKENS, LENGTH, LOG_PROBS, STOP, STOP_REASON, PreprocessedRequest
from dynamo.runtime.errors import CapacityExceeded, EngineError, EngineShutdown, InvalidArgument
from dynamo.worker.engines.support import request_checks
from dynamo.worker.engines.support.open_requests import EngineOutput, OpenRequests


def begun() -> tuple[OpenRequests[str], Recorder]:
    under_way, sink = OpenRequests[str](), Recorder()
    under_way.add("a", sink)
    return under_way, sink


def test_what_is_said_of_tokens_travels_with_them() -> None:
    """Also with the last ones: who reads log probabilities finds one for each token of its delta."""
    under_way, sink = begun()
    assert not under_way.hand("a", EngineOutput([4], {LOG_PROBS: [-1.0]}, None))
    assert under_way.hand("a", EngineOutput([5], {LOG_PROBS: [-2.0]}, STOP, {STOP_REASON: 5}))
    assert sink.produced == [4, 5]
    assert sink.extras == [{LOG_PROBS: [-1.0]}, {LOG_PROBS: [-2.0]}, {STOP_REASON: 5}]
    assert sink.ends == [STOP]
    assert len(under_way) == 0


def test_an_end_without_tokens_brings_what_is_left_to_say() -> None:
    """One delta, not two."""
    under_way, sink = begun()
    under_way.hand("a", EngineOutput([], {CACHED_TOKENS: 3}, LENGTH))
    assert (sink.produced, sink.extras, sink.ends) == ([], [{CACHED_TOKENS: 3}], [LENGTH])


def test_nothing_comes_after_an_end() -> None:
    """Whichever end it was, and whatever comes late from a thread."""
    ends: list[Callable[[OpenRequests[str]], object]] = [
        lambda u: u.finish("a", LENGTH), lambda u: u.fail("a", EngineError("broken")), lambda u: u.drop("a"),
        lambda u: u.end_all(),
    ]  # fmt: skip
    for end in ends:
        under_way, sink = begun()
        end(under_way)
        heard = list(sink.ends)
        under_way.push("a", [1])
        assert under_way.hand("a", EngineOutput([1], None, LENGTH))
        under_way.fail("a", EngineError("late"))
        assert not under_way.drop("a")
        assert (sink.produced, sink.ends) == ([], heard)


def test_who_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as the context leaves; not too many at once, and nobody when all were ended."""
    monkeypatch.setattr(request_checks, "MOST_OPEN", 2)
    under_way, _ = begun()
    asked = PreprocessedRequest(model="m", token_ids=[1, 2, 3])
    assert under_way.room(asked, 10) == 7
    with pytest.raises(InvalidArgument, match="a prompt of 3 tokens"):
        under_way.room(asked, 3)
    under_way.add("b", Recorder())
    with pytest.raises(CapacityExceeded):
        under_way.room(asked, 10)
    assert under_way.end_all("gone") == ["a", "b"]
    with pytest.raises(EngineShutdown, match="gone"):
        under_way.room(asked, 10)
