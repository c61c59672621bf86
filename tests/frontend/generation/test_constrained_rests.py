"""Constrained answers whose worker is lost: made anew by another one, where two workers make the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.frontend.generation.test_migration import Lettered, ask, events, text_from

from dynamo.runtime.errors import Disconnected, DynamoException


class Schooled(Lettered):
    """An engine that begins a constrained answer anew, whatever was answered; it may make another one at an attempt."""

    def __init__(self, *breaks: tuple[int, DynamoException], other_at: int = 99, together: int = 1) -> None:
        super().__init__(*breaks, together=together)
        self._other_at = other_at

    def _delta(self, asked: dict[str, Any], tokens: list[int], extras: dict[str, Any]) -> Any:
        if len(self.seen) > self._other_at:
            tokens = [token + 1 for token in tokens]
        return super()._delta(asked, tokens, extras)


@pytest.fixture
def schooled(make_site: Callable[..., Any]) -> Callable[..., tuple[Any, Schooled]]:
    """A frontend with two workers that share one script."""

    def make(*breaks: tuple[int, DynamoException], **options: Any) -> tuple[Any, Schooled]:
        site, engine = make_site(migration_limit=5), Schooled(*breaks, **options)
        for _ in range(2):
            site.worker(engine)
        return site, engine

    return make


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("together", [1, 3])
def test_constrained_answers_are_made_anew(schooled: Any, together: int, stream: bool) -> None:
    """Greedy: one gets less far than the one before, one breaks off at once; the client reads it once, and whole."""
    breaks = (5, Disconnected()), (3, Disconnected()), (0, Disconnected()), (12, Disconnected())
    site, engine = schooled(*breaks, together=together)
    answer = ask(site, guided_regex="[a-z]*", temperature=0, stream=stream)
    if stream:
        text = "".join(choice["text"] for event in events(answer) for choice in event["choices"])
    else:
        text = answer.json()["choices"][0]["text"]
        assert answer.json()["usage"]["completion_tokens"] == 20
    assert text == text_from("hi", 20)
    assert [asked.get("answered_tokens", 0) for _, asked in engine.seen] == [0] * 5
    assert {asked["stop_conditions"]["max_tokens"] for _, asked in engine.seen} == {20}


@pytest.mark.parametrize(("asked", "said"), [({"temperature": 0}, "another answer"), ({}, "made anew")])
def test_constrained_answers_that_are_not_made_anew(schooled: Any, asked: dict[str, Any], said: str) -> None:
    """Another answer than the client has, or one that is drawn: an error that says so, and no text twice."""
    site, _ = schooled((5, Disconnected()), other_at=1)
    answer = ask(site, guided_regex="[a-z]*", stream=True, **asked)
    made = events(answer)
    assert "".join(choice["text"] for event in made for choice in event.get("choices", ())) == text_from("hi", 5)
    assert said in made[-1]["error"]["message"]
