"""The benchmark's pure parts: what it sends, what it reads of an answer, and its arithmetic."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.client import Times, send_waves
from bench.exact import Stream, longest_over_median
from bench.figures import (
    absolute_bars,
    disturbance,
    median,
    per_unit,
    percentile,
    ratio,
    table,
    verdict,
    whole_system,
)
from bench.sse import Answer, event_texts
from bench.workloads import WORKLOADS, groups, prompts, select

STREAM = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"a\\n\\ndata: b"},"finish_reason":null}]}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
    b"data: [DONE]\n\n"
)


def feed(body: bytes, size: int) -> Answer:
    """An answer that came in pieces of `size` bytes."""
    answer = Answer()
    for start in range(0, len(body), size):
        answer.feed(body[start : start + size])
    return answer


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_events_are_counted_however_the_stream_is_cut(size: int) -> None:
    """The count of events and the verdict don't depend on where reads end."""
    answer = feed(STREAM, size)
    assert answer.events == 5
    assert answer.has_text
    assert answer.fault(200, 2, streamed=True) is None


def test_the_first_text_is_not_the_role_event() -> None:
    """An event with a role and an empty text isn't the first token."""
    answer = Answer()
    answer.feed(STREAM.split(b"\n\n")[0] + b"\n\n")
    assert not answer.has_text


@pytest.mark.parametrize(
    ("body", "status", "tokens", "said"),
    [
        (STREAM, 503, 2, "status 503"),
        (STREAM, 200, 3, "2 tokens instead of 3"),
        (STREAM.replace(b"data: [DONE]\n\n", b""), 200, 2, "without [DONE]"),
        (STREAM.replace(b'"length"', b'"stop"'), 200, 2, "finish_reason is stop"),
        (STREAM.replace(b"completion_tokens", b"tokens"), 200, 2, "no usage"),
    ],
)
def test_a_wrong_answer_is_told(body: bytes, status: int, tokens: int, said: str) -> None:
    """Every way in which an answer can fall short is a fault of its own."""
    assert said in (feed(body, 64).fault(status, tokens, streamed=True) or "")


def test_texts_of_a_stream_are_what_the_server_meant() -> None:
    """Escapes are undone, and text that looks like a field name stays text."""
    assert "".join(event_texts(STREAM)) == "a\n\ndata: b"


def test_percentiles_take_the_nearest_rank() -> None:
    """p50 and p99 of 1..100 are 50 and 99; one value is every percentile; none is 0."""
    assert percentile(range(1, 101), 50) == 50
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7.0], 99) == 7.0
    assert percentile([], 50) == 0.0


def test_cpu_is_told_in_the_unit_of_the_workload() -> None:
    """Microseconds per token for the streams, milliseconds per request for the rest."""
    p, r = select(["p", "r"])
    assert per_unit(p, 2.56, 1000) == pytest.approx(10.0)
    assert per_unit(r, 0.5, 1000) == pytest.approx(0.5)


def test_the_ratio_is_taken_round_by_round() -> None:
    """A machine that gets twice as slow in the second round doesn't change the ratio."""
    ours = [{"frontend": 10.0}, {"frontend": 20.0}]
    peer = [{"frontend": 40.0}, {"frontend": 80.0}]
    assert ratio(ours, peer, "frontend") == pytest.approx(0.25)
    assert ratio(ours, [], "frontend") is None
    assert median(ours, "frontend") == 15.0
    assert median(ours, "absent") is None


def test_the_table_says_what_was_missed() -> None:
    """A ratio over its bar is called missed, with the bar beside it."""
    row = dict.fromkeys(("workers", "nats", "etcd", "ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"), 1.0)
    rest = {"tokens_per_second": 9e4, "rss_mb": 90.0, "faults": 0, **row}
    results = {"p": {"ours": [{"frontend": 20.0, **rest}], "peer": [{"frontend": 40.0, **rest}]}}
    shown = table(select(["p"]), results)
    assert "**0.50**" in shown
    assert "<= 0.40 | MISSED" in shown
    assert verdict(0.4, 0.4) == "ok"
    assert verdict(0.4, None) == ""


def test_absolute_bars_name_the_figure_and_the_limit() -> None:
    """Bars that don't compare with the peer are lines of their own."""
    assert absolute_bars({"s": {"ours": [{"ttft_p50_ms": 0.7}]}}) == ["s: ttft_p50_ms 0.70 (bar <= 0.8) ok"]


def test_a_disturbed_run_says_so() -> None:
    """Other programs' share of the machine is told when it is large enough to matter."""
    results = {"p": {"ours": [{"others_share": 0.02}, {"others_share": 0.4}]}, "r": {"ours": [{"others_share": 0.05}]}}
    assert disturbance(results) == [
        "other programs used up to this much of the machine, repeat when it is quiet: p 40%"
    ]
    assert disturbance({"r": results["r"]}) == []


def test_prompts_are_the_same_for_a_seed_and_never_repeat() -> None:
    """Both sides get the same texts; no text is sent twice, nor in another round."""
    words = [f"w{i}" for i in range(500)]
    first, second = prompts(words, 64, 50, "p/0"), prompts(words, 64, 50, "p/1")
    assert first == prompts(words, 64, 50, "p/0")
    assert len(set(first + second)) == 100
    assert {len(text.split()) for text in first} == {64}


def test_unknown_workloads_are_refused_by_name() -> None:
    """The message holds the wrong name and the right ones."""
    with pytest.raises(ValueError, match="no workload x; there are p, q"):
        select(["p", "x"])


def test_groups_share_speed_and_tokenizer_and_lose_nothing() -> None:
    """Each workload is in exactly one group, and every group can be served by one server set."""
    results = [(group, w) for group, members in groups(WORKLOADS) for w in members]
    assert sorted(w.name for _, w in results) == sorted(w.name for w in WORKLOADS)
    assert all((w.speed, w.tokenizer, w.workers) == group for group, w in results)


def test_every_bar_of_the_issue_is_in_the_table() -> None:
    """The bars that frontends are held to."""
    bars = {w.name: w.bar for w in WORKLOADS if w.bar is not None}
    assert bars == {"p": 0.40, "q": 0.75, "P": 0.41, "d": 0.40, "r": 0.45, "a": 0.40, "b": 0.45, "c": 0.50}


def test_every_bar_of_the_whole_system_is_in_the_table() -> None:
    """The bars that all processes together are held to."""
    bars = {w.name: w.total_bar for w in WORKLOADS if w.total_bar is not None}
    assert bars == {"p": 0.45, "q": 0.65, "P": 0.40, "d": 0.35, "r": 0.40, "a": 0.35, "c": 0.55}


def test_the_whole_system_is_judged_by_all_processes() -> None:
    """CPU by its bar and with the rounds' spread, throughput by 0.98; a side alone has no row."""
    latencies = dict.fromkeys(("ttft_p50_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p99_ms"), 2.0)
    ours = [{"total": total, "tokens_per_second": 90.0, **latencies} for total in (40.0, 50.0, 60.0)]
    peer = [{"total": 100.0, "tokens_per_second": 100.0, **latencies}] * 3
    row = whole_system(select(["p"]), {"p": {"ours": ours, "peer": peer}}).splitlines()[-1]
    assert "| **0.50** | 0.40 to 0.60 | <= 0.45 | MISSED |" in row
    assert row.endswith("| 0.9 | 1 | 1 | 1 | 1 | MISSED |")
    assert len(whole_system(select(["p"]), {"p": {"ours": ours}}).splitlines()) == 2


def test_every_tenth_prompt_is_long() -> None:
    """Where the workload says so."""
    sizes = [len(text.split()) for text in prompts(["a", "b"], 3, 20, "m", 50)]
    assert sizes == ([3] * 9 + [50]) * 2


def test_waves_go_out_together_and_on_time() -> None:
    """A request on each connection; the next wave begins on time, or once the one before is answered."""
    sent: list[tuple[int, float]] = []

    class Slow:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        async def ask(self, request: bytes, times: Times) -> None:
            sent.append((int(request), asyncio.get_running_loop().time()))
            await asyncio.sleep(self.seconds)

    async def waves(seconds: float) -> list[float]:
        sent.clear()
        begin = asyncio.get_running_loop().time()
        connections: Any = [Slow(seconds), Slow(0.0)]
        await send_waves(connections, [b"0", b"1", b"2", b"3", b"4"], 0.2)
        assert [number for number, _ in sent] == [0, 1, 2, 3, 4]
        return [at - begin for _, at in sent]

    quick, slow = asyncio.run(waves(0.0)), asyncio.run(waves(0.3))
    assert quick[1] < 0.2 <= quick[2] < 0.4 <= quick[4]
    assert slow[1] < 0.3 <= slow[2]
    assert slow[4] >= 0.6


def test_warm_up_never_exceeds_what_is_measured() -> None:
    """A short workload isn't warmed up longer than it runs."""
    assert replace(WORKLOADS[0], speed="fast", requests=3).warm_up == 3


def test_longest_gap_is_told_against_the_median_of_all() -> None:
    """One stall of 50 ms among 5 ms steps is a ratio of 10."""
    calm = Stream("x", "x", [0.005] * 9)
    stalled = Stream("x", "x", [0.005] * 8 + [0.05])
    assert longest_over_median([calm, stalled]) == pytest.approx(10.0)
    assert math.isnan(longest_over_median([]))
