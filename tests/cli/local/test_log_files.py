"""Log lines: how severe, bounded files, reading back and following."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dynamo.cli.commands.logs import logs
from dynamo.cli.local.display import LiveDisplay, PlainDisplay
from dynamo.cli.local.log_files import (
    Follower,
    LogFile,
    LogLine,
    Repeats,
    Severity,
    last_words,
    message,
    read_lines,
    severity,
)
from dynamo.cli.local.processes import LineSplitter

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("10:31:23 worker.engines.llamacpp: loading x, no error so far", Severity.INFO),
        ("10:31:23 WARNING runtime.registry: slow", Severity.WARNING),
        ("10:31:23 ERROR worker.main: bad", Severity.ERROR),
        ('{"time": "x", "level": "WARNING", "message": "x"}', Severity.WARNING),
        ('{"level":"warn","ts":"2026","msg":"etcd"}', Severity.WARNING),
        ("[26419] 2026/11/21 10:31:21.956777 [INF] Starting nats-server", Severity.INFO),
        ("[26419] 2026/11/21 10:31:21.956777 [ERR] no", Severity.ERROR),
        ("0.01.418.698 W load: control-looking token", Severity.INFO),
        ("0.01.418.698 E load: no such tensor", Severity.ERROR),
        ("Error: no such model", Severity.ERROR),
        ('  File "a.py", line 1', None),
        ("", None),
    ],
)
def test_severity_of_the_formats_that_occur(line: str, expected: Severity | None) -> None:
    """Ours, JSON, etcd's, NATS's, llama.cpp's; a line that says nothing goes on with the one before."""
    assert severity(line) is expected


def test_the_message_of_our_own_lines() -> None:
    """What a status line shows of a part that starts."""
    assert message("10:31:23 worker.main: loading x") == "loading x"
    assert message("0.01.418.698 I srv: x") is None


def test_a_log_file_is_bounded_and_read_back_in_order(tmp_path: Path) -> None:
    """Two files of the limit at most; the newest lines are there."""
    log = LogFile(tmp_path / "part.log", max_bytes=1000)
    for number in range(200):
        log.write(f"line {number}", NOON)
    log.close()
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 2200
    lines = [line.text for line in read_lines(tmp_path / "part.log", "part")]
    assert lines[-1] == "line 199"
    assert lines == [f"line {n}" for n in range(200 - len(lines), 200)]


def test_a_follower_sees_what_is_added_across_rotation(tmp_path: Path) -> None:
    """Nothing twice, nothing lost, also when the file becomes `.1` in between."""
    path = tmp_path / "part.log"
    log = LogFile(path, max_bytes=300)
    log.write("before", NOON)
    follower = Follower(path, "part")
    seen: list[str] = []
    for number in range(30):
        log.write(f"line {number}", NOON)
        seen += [line.text for line in follower.poll()]
    follower.close()
    log.close()
    assert seen == [f"line {n}" for n in range(30)]


def test_what_a_part_wrote_does_not_speak_to_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`dynamo logs` and `dynamo up` show control characters of a part as text, tabs apart."""
    hostile = "a\x1b[31mb\x9b\u2028c\td\u202e"
    folder = tmp_path / "dynamo" / "llama" / "logs"
    folder.mkdir(parents=True)
    log = LogFile(folder / "worker-0.log", max_bytes=1000)
    log.write(hostile, NOON)
    log.close()
    monkeypatch.setattr("dynamo.cli.commands.logs.state_home", lambda environ: tmp_path / "dynamo")
    out = io.StringIO()
    PlainDisplay(out).log("worker-0", hostile, Severity.INFO)
    LiveDisplay(Console(file=out, force_terminal=True, color_system=None)).log("worker-0", hostile, Severity.INFO)
    written = CliRunner().invoke(logs, ["worker-0"]).stdout + out.getvalue()
    assert written.count("a\\x1b[31mb\\x9b\\u2028c") == 3
    assert not set(written) & set("\x1b\x9b\u2028\u202e")


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    """What a killed run wrote half doesn't stop the reader."""
    path = tmp_path / "part.log"
    path.write_text("garbage\n2026-11-21T12:00:00.000+00:00 good\n2026-11-2")
    assert list(read_lines(path, "p")) == [LogLine(NOON, "p", "good")]


@given(st.lists(st.text(alphabet="ab\néü", max_size=30)), st.data())
def test_lines_don_t_depend_on_how_the_bytes_arrive(texts: list[str], data: st.DataObject) -> None:
    """Any cutting of the bytes gives the same lines."""
    whole = "\n".join(texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    splitter, lines = LineSplitter(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        lines += splitter.feed(whole[start:end])
    lines += splitter.end()
    expected = whole.decode().split("\n")
    assert lines == (expected if expected[-1] else expected[:-1])


def test_progress_bars_and_colours_become_plain_lines() -> None:
    """What would move a terminal's cursor doesn't reach it."""
    splitter = LineSplitter()
    lines = splitter.feed(b"\r 10%\r 20%") + splitter.feed(b"\r 30%\r\n\x1b[31mred\x1b[0m\x07 x\ty\r\n")
    assert lines == ["", " 10%", " 20%", " 30%", "red x\ty"]


def test_a_line_without_end_is_cut() -> None:
    """A process that never ends its line can't fill our memory."""
    splitter = LineSplitter()
    lines = [line for _ in range(100) for line in splitter.feed(b"x" * 1000)]
    assert max(map(len, lines)) <= 16_384
    assert sum(map(len, lines)) + len("".join(splitter.end())) == 100_000


def test_one_failure_is_shown_once() -> None:
    """The frontend's line repeats the worker's of the same request; another request's, or another cause, is new."""
    repeats = Repeats()
    cause = "engine.py:2 in generate: ValueError: mine"
    assert not repeats.is_one(f"10:00:00 ERROR worker: [0123456789abcdef] {cause}")
    assert repeats.is_one(f"10:00:00 WARNING frontend: [0123456789abcdef] failed after 0 token(s): {cause}")
    assert not repeats.is_one(f"10:00:00 WARNING frontend: [fedcba9876543210] failed after 0 token(s): {cause}")
    assert not repeats.is_one("10:00:00 ERROR worker: [0123456789abcdef] the GPU is gone")
    assert not repeats.is_one("10:00:00 ERROR worker: no request")
    assert not repeats.is_one("10:00:00 ERROR worker: no request")


def test_what_was_shown_is_bounded() -> None:
    """A thousand failures later the first one is new again."""
    repeats = Repeats()
    assert not repeats.is_one("[request-0] x")
    assert not any(repeats.is_one(f"[request-{number}] x") for number in range(1, 1000))
    assert not repeats.is_one("[request-0] x")


FULL = '{"level":"panic","caller":"raft.go:433","msg":"failed to create WAL","error":"no space left on device"}'
PANIC = ["panic: failed to create WAL", "goroutine 1 [running]:", "go.etcd.io/etcd.main()", "\tmain.go:32 +0x45"]


@pytest.mark.parametrize(
    ("lines", "begins", "ends"),
    [
        ([FULL, *PANIC], "the disk is full: free space (dynamo clean", "panic: failed to create WAL"),
        (PANIC, "panic: failed to create WAL", "WAL"),
        (["OSError: [Errno 28] No space left on device: '/x'"], "the disk is full", "'/x'"),
        (["ERROR no such model", "goodbye"], "ERROR no such model", "model"),
        ([], "", ""),
    ],
)
def test_why_a_process_ended(lines: list[str], begins: str, ends: str) -> None:
    """A full disk says what to do; of a Go program its panic, not the last line of its stack."""
    said = [(severity(line) or (Severity.ERROR if line in PANIC else Severity.INFO), line) for line in lines]
    words = last_words(said, 300)
    assert words.startswith(begins)
    assert words.endswith(ends)
