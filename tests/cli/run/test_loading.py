"""The line that moves while a model is loaded."""

from __future__ import annotations

import asyncio
import io

import pytest

from dynamo.cli.run.loading import loading


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def shown(out: io.StringIO, what: str) -> str:
    async with loading(what, out):
        await asyncio.sleep(0.5)
    return out.getvalue()


async def test_a_terminal_sees_it_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several looks, each in the place of the one before; at the end nothing of it is left."""
    monkeypatch.setenv("TERM", "xterm")
    text = await shown(Terminal(), "m.gguf")
    assert text.count("loading m.gguf (0 s)\r") >= 2
    assert "\n" not in text
    assert text.endswith("\r\x1b[K")


@pytest.mark.parametrize(("out", "term", "what"), [
    (io.StringIO(), "xterm", "m"), (Terminal(), "dumb", "m"), (Terminal(), "xterm", ""),
])  # fmt: skip
async def test_elsewhere_nothing_is_written(
    out: io.StringIO, term: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe, on a terminal that can't go back, and for echoes, which load nothing."""
    monkeypatch.setenv("TERM", term)
    assert await shown(out, what) == ""


async def failing(out: io.StringIO) -> None:
    async with loading("m", out):
        await asyncio.sleep(0)
        raise ValueError("broken")


async def test_it_ends_with_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that fails: the error stands on a clean line."""
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with pytest.raises(ValueError, match="broken"):
        await failing(out)
    assert out.getvalue().endswith("\r\x1b[K")
