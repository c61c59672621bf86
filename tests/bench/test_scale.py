"""The pure parts of the benches of ten thousand streams and of a thousand workers."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.client import Task
from bench.scale import probe, streams
from bench.scale.fleet import Fleet, ids

TASK = Task("http://127.0.0.1:1", "m", 2, 1, stream=True, quick_ack=False, warm_up=[], prompts=["hi"])
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"b"},"finish_reason":"length"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
)


@pytest.mark.parametrize("count", [1, 256, 512, 513, 10_000])
def test_every_stream_has_a_sequence(count: int) -> None:
    """Engines run so many at once, and their steps take a second."""
    fleet = streams.fleet(count)
    assert fleet.size * fleet.engine["max_num_seqs"] >= count
    assert fleet.size - fleet.processes < -(-count // streams.SEQUENCES) + fleet.processes
    assert streams.STEP_MS / fleet.engine["decode_speedup_ratio"] == pytest.approx(1000)


def test_streams_last_until_all_were_held() -> None:
    """The first one opened still gives tokens when the last second of looking ends."""
    options = streams.parse(["--streams", "100", "--per-second", "10", "--seconds", "5"])
    assert options.tokens_out == 10 + 5 + streams.MARGIN_SECONDS


def test_who_is_ready(tmp_path: Path) -> None:
    """Each instance says so once; what else a process writes isn't one, nor is a line that is half there."""
    (tmp_path / "log").write_bytes(b'ready {"instance": 7}\nnot ready {"instance": 8}\nready {"instance": "9"}\n')
    assert ids([tmp_path / "log"]) == {"7", "9"}
    assert Fleet(2, 3, {}).size == 6


def _answering(sock: socket.socket, pieces: list[bytes]) -> None:
    sock.recv(1 << 16)
    for piece in pieces:
        sock.sendall(piece)


def _asked(pieces: list[bytes]) -> float:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(target=_answering, args=(theirs, pieces))
        thread.start()
        try:
            return probe.first_token(probe.Look(TASK, 1.0), ours)
        finally:
            thread.join()


def test_the_probe_takes_a_whole_answer_only() -> None:
    """The first token's time counts once the rest was there, too."""
    chunks = [f"{len(event):x}\r\n".encode() + event + b"\r\n" for event in EVENTS]
    assert _asked([HEAD, *chunks, b"0\r\n\r\n"]) > 0
    with pytest.raises(OSError, match=r"without \[DONE\]"):
        _asked([HEAD, *chunks[:2], b"0\r\n\r\n"])


def test_what_is_told() -> None:
    """Figures stand beside their bars, and memory is what each stream beyond the first takes."""
    options = streams.parse(["--streams", "1025"])
    figures = dict.fromkeys(("live_p50_ms", "live_p99_ms", "live_most_ms", "first_p50_ms", "first_p99_ms"), 1.0)
    held = figures | {f"{role}_cores": 0.5 for role in (*streams.ROLES, "client", "machine")}
    held |= {"itl_p50_s": 1.0, "itl_p99_s": 1.1, "itl_most_s": 1.2, "opened_in": 7.0, "rss_mb": 120.0}
    lines = streams.told(options, figures, held | {"whole": 1025, "faults": 0, "first_faults": []}, 100.0)
    assert any("20.0 KB for each beyond the first (bar 25)" in line for line in lines)
