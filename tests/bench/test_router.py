"""The parts of `make bench-router` that need no servers: prompts, bars, the printed tables, the costs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bench.router.client import Counts
from bench.router.micro import Figure, filled
from bench.router.scenarios import SCENARIOS, SYSTEM_PROMPTS, SYSTEM_TOKENS, TURNS, Bar, conversations, select
from bench.router.suite import parse
from bench.router.table import micro_table, table, verdict
from bench.sse import Answer

WORDS = [f"word{number}" for number in range(500)]


def test_conversations_grow_and_are_the_same_again() -> None:
    """Each turn is the one before and more; every system prompt is used as often; another seed is another text."""
    made = conversations(WORDS, 40, "p", "a")
    assert made == conversations(WORDS, 40, "p", "a")
    assert all(len(turns) == TURNS for turns in made)
    for turns in made:
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
            assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]
    systems = [turns[0][0]["content"] for turns in made]
    assert sorted(systems.count(system) for system in set(systems)) == [2] * SYSTEM_PROMPTS
    assert len(systems[0].split()) == SYSTEM_TOKENS


def test_two_halves_share_their_system_prompts_only() -> None:
    """What a restarted frontend must know again is the first half's prompts; the turns are new."""
    first, second = conversations(WORDS, 20, "p", "a"), conversations(WORDS, 20, "p", "b")
    assert {t[0][0]["content"] for t in first} == {t[0][0]["content"] for t in second}
    assert not {t[0][1]["content"] for t in first} & {t[0][1]["content"] for t in second}


def test_hits_are_read_from_the_usage() -> None:
    """Prompt tokens and cached ones of all answers; a server that doesn't tell makes no ratio."""
    answer = Answer()
    answer.feed(b'data: {"usage":{"prompt_tokens":300,"prompt_tokens_details":{"cached_tokens":256}}}\n\n')
    assert answer.prompt_tokens() == (300, 256)
    counts = Counts()
    counts.prompt, counts.cached = 400, 100
    assert counts.ratio == 0.25
    counts.untold = 1
    assert counts.ratio is None
    silent = Answer()
    silent.feed(b'data: {"usage":{"prompt_tokens":300}}\n\n')
    assert silent.prompt_tokens() == (300, None)


@pytest.mark.parametrize(
    ("bar", "ours", "peer", "said"),
    [
        (Bar("hit_ratio", 1.0, ratio=True, at_least=True), 0.9, 0.8, "**1.12** ok"),
        (Bar("hit_ratio", 1.0, ratio=True, at_least=True), 0.7, 0.8, "**0.875** MISSED"),
        (Bar("hit_ratio", 0.88, at_least=True), 0.9, None, "**0.9** ok"),
        (Bar("ttft_p50_ms", 1.0, ratio=True), 30.0, 20.0, "**1.5** MISSED"),
        (Bar("hit_ratio", 1.0, ratio=True, at_least=True), 0.7, None, ""),
    ],
)
def test_bars_say_what_was_missed(bar: Bar, ours: float, peer: float | None, said: str) -> None:
    """At least or at most, alone or against the peer; without a peer a ratio says nothing."""
    sides = {"ours": [{bar.figure: ours}]} | ({"peer": [{bar.figure: peer}]} if peer is not None else {})
    assert verdict(bar, sides).endswith(said)
    assert bool(verdict(bar, sides)) == bool(said)


def test_a_side_that_does_not_tell_its_hits_is_said() -> None:
    """No ratio is made up."""
    bar = Bar("hit_ratio", 1.0, ratio=True, at_least=True)
    assert "not told by all" in verdict(bar, {"ours": [{"hit_ratio": 0.9}], "peer": [{"hit_ratio": None}]})


def test_the_tables_have_a_row_a_side() -> None:
    """Only what was measured, ours with its bars."""
    figures = {"hit_ratio": 0.9, "ttft_p50_ms": 20.0, "ttft_p99_ms": 90.0, "faults": 0}
    shown = table(SCENARIOS, {"e4": {"ours": [figures], "peer": [{**figures, "ttft_p99_ms": 60.0}]}}).splitlines()
    assert [line.split(" | ")[:2] for line in shown[2:]] == [["| e4", "ours"], ["| e4", "peer"]]
    assert "ttft_p99_ms <= 1 of the peer's: **1.5** MISSED" in shown[2]
    assert "MISSED" not in shown[3]
    assert (table(SCENARIOS, {}), micro_table([])) == ("", "")


def test_costs_are_held_against_the_peers() -> None:
    """A ratio where there is one, a bar where there is one."""
    figures = [Figure("find", 50.0, "µs CPU", peer=100.0), Figure("bytes", 77.9, "bytes/block", "<= 100 ok")]
    assert micro_table(figures).splitlines()[2:] == [
        "| find | µs CPU | 50 | 100 | **0.50** |  |",
        "| bytes | bytes/block | 77.9 | - |  | <= 100 ok |",
    ]


def test_what_the_command_line_asks_for() -> None:
    """Scenarios by name, the costs with all of them or by `micro`; a wrong name is named."""
    assert [scenario.name for scenario in select(parse(["--only", "two,e4"]).only)] == ["e4", "two"]
    assert parse([]).micro
    assert parse(["--only", "micro"]).only_micro
    assert not parse(["--only", "e4"]).micro
    assert parse(["--ours-only"]).leave_out == ("peer",)
    with pytest.raises(ValueError, match="no scenario e5"):
        select(["e5"])


def test_the_measured_decision_is_one_that_has_to_choose() -> None:
    """Every worker has something cached and something to do; those that hold all of the prompt are cheapest."""
    tokens = list(range(8192))
    made, ranks = filled(tokens, 8)
    decision = made.query(made.prompt(tokens), ranks)
    assert decision.overlap_blocks == 128
    assert decision.rank.instance % 2 == 0
    assert all(made.activity.load(rank).requests == 1 for rank in ranks)
