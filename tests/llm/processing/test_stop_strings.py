"""Stop strings: the same result however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.processing.stop_strings import StopMatcher

letters = st.text(alphabet="ab\u00e9", max_size=5)
pieces = st.lists(letters, max_size=12)
stops = st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=4), min_size=1, max_size=4)


def reference(text: str, stops: list[str], include: bool, unarmed: int = 0) -> tuple[str, str | None]:
    """The rule, character by character over the whole text."""
    for end in range(unarmed + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def run(matcher: StopMatcher, parts: list[str], unarmed_parts: int = 0) -> str:
    """Feed all parts until the text ends."""
    shown = ""
    for number, part in enumerate(parts):
        shown += matcher.feed(part, number >= unarmed_parts)
        if matcher.matched is not None:
            return shown
    return shown + matcher.flush()


@given(pieces, stops, st.booleans())
def test_any_cutting_gives_what_the_whole_text_gives(parts: list[str], stops: list[str], include: bool) -> None:
    """Shown text and matched stop equal the reference's."""
    matcher = StopMatcher(stops, include)
    assert (run(matcher, parts), matcher.matched) == reference("".join(parts), stops, include)


@given(pieces, stops, st.integers(0, 12))
def test_no_match_ends_within_the_unarmed_part(parts: list[str], stops: list[str], unarmed: int) -> None:
    """Below `min_tokens` nothing stops, but a match may begin there and end later."""
    matcher = StopMatcher(stops)
    skipped = len("".join(parts[:unarmed]))
    assert (run(matcher, parts, unarmed), matcher.matched) == reference("".join(parts), stops, False, skipped)


@given(pieces, stops)
def test_held_text_is_always_the_beginning_of_a_stop(parts: list[str], stops: list[str]) -> None:
    """What is not shown yet could still become a stop string; nothing else is kept back."""
    matcher = StopMatcher(stops)
    shown = fed = ""
    for part in parts:
        shown += matcher.feed(part)
        fed += part
        if matcher.matched is not None:
            return
        held = fed.removeprefix(shown)
        assert shown + held == fed
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


@pytest.mark.parametrize(
    ("stops", "text", "shown", "matched"),
    [
        (["world", "o w"], "hello world", "hell", "o w"),
        (["o w", "world"], "hello world", "hell", "o w"),
        (["ND", "END"], "the END", "the ", "END"),
        (["", "x"], "axb", "a", "x"),
    ],
)
def test_the_earliest_in_the_text_wins(stops: list[str], text: str, shown: str, matched: str) -> None:
    """The order of the list plays no part, and several in one piece are told apart."""
    matcher = StopMatcher(stops)
    assert (run(matcher, [text]), matcher.matched) == (shown, matched)
