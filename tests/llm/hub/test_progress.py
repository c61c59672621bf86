"""How far a download is: rates, words, a bar that fits."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.hub.progress import Progress, State, Teller, bar, duration_text, size_text, terminal_of


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """What was there before counts as done, not as fast."""
    progress = Progress({"a": 1000, "b": 1000})
    progress.at("a", 500)
    assert progress.state(0.0) == State(500, 2000, 0.0)
    progress.add("a", 100)
    assert progress.state(2.0) == State(600, 2000, 50.0)
    progress.add("b", 1000)
    for second in range(3, 30):
        state = progress.state(float(second))
    assert state == State(1600, 2000, 0.0)
    assert progress.loaded == 1100


def test_another_process_may_load_it() -> None:
    """Said as long as it isn't whole."""
    progress = Progress({"a": 1000})
    progress.at("a", 10, elsewhere=True)
    assert str(progress.state(0.0)) == "10 B of 1 kB (1%), another process loads it"
    progress.at("a", 1000)
    assert not progress.state(1.0).waiting


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (2_340_000, "2.3 MB"), (5e8, "500 MB"),
                       (1.23e10, "12.3 GB"), (1.5e12, "1.5 TB")],
)  # fmt: skip
def test_sizes(size: float, text: str) -> None:
    """As disks and lines have them."""
    assert size_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (130, "2 min 10 s"), (7300, "2 h 1 min")])
def test_durations(seconds: float, text: str) -> None:
    """Two units are enough."""
    assert duration_text(seconds) == text


@given(st.text(max_size=60), st.integers(0, 10**13), st.integers(0, 10**13), st.integers(20, 200))
def test_a_bar_fits_its_terminal(title: str, done: int, more: int, width: int) -> None:
    """One that wraps would be drawn a hundred times, one below the other."""
    assert len(bar(title, State(done, done + more, 5e6), width)) <= max(width - 1, 20)


def test_a_bar_says_it_all() -> None:
    """Name, bar, share, rate and what is left."""
    line = bar("hf://org/tiny", State(250_000_000, 500_000_000, 5e7), 120)
    assert line == "hf://org/tiny [############............] 250 MB of 500 MB (50%), 50.0 MB/s, 5 s left"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_and_lines_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever turns the hub's bars off gets lines too."""
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    assert terminal_of(screen) is screen
    teller = Teller("x", screen)
    teller.tell(State(1, 2, 0.0))
    teller.end()
    assert screen.getvalue().startswith("\r")
    assert screen.getvalue().endswith("\n")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    assert terminal_of(screen) is None
    assert terminal_of(io.StringIO()) is None
    with caplog.at_level(logging.INFO):
        Teller("x", None).tell(State(1, 2, 0.0))
    assert "x: 1 B of 2 B (50%)" in caplog.text
