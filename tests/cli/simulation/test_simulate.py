"""`dynamo simulate`: the same numbers for the same seed, by skipping or not, and the router's own choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo.cli.commands.simulate import simulate
from dynamo.cli.simulation.cluster import Cluster, Setup
from dynamo.cli.simulation.figures import Figures, figures, percentile
from dynamo.cli.simulation.plot import plot
from dynamo.cli.simulation.prompts import Prompts
from dynamo.cli.simulation.trace import Call, TraceError, TraceLine, calls, parse
from dynamo.cli.simulation.workloads import SHAPES, generate
from dynamo.llm.kv.block_hash import block_hashes, sequence_hashes
from dynamo.runtime.load_balancing import ROUTER_MODES
from dynamo.worker.engines.mocker.arguments import read_arguments
from dynamo.worker.engines.mocker.stepper import decode_ms, prefill_ms

BLOCK = 64


def line(**fields: Any) -> TraceLine:
    return TraceLine(**{"timestamp": 0.0, "input_length": 100, "output_length": 3, "hash_ids": [1, 2], **fields})


def sent(*lines: TraceLine, mode: str = "round-robin", workers: int = 1, **arguments: Any) -> tuple[Figures, Cluster]:
    """What came of these lines, an id standing for one block of 64."""
    result = calls(lines)
    cluster = Cluster(Setup(workers, read_arguments(arguments, BLOCK)), mode, Prompts(BLOCK, BLOCK))
    cluster.run(result)
    return figures(mode, cluster, min(call.at for call in result if call.at is not None)), cluster


def test_one_request_takes_what_the_formulas_say() -> None:
    """Prefill of its prompt, then a decode step for each further token."""
    figures, _ = sent(line(timestamp=5000.0))
    assert figures.ttft_p50_ms == pytest.approx(prefill_ms(100), abs=1e-5)
    assert figures.itl_p50_ms == figures.itl_p99_ms == pytest.approx(decode_ms(2 / 16384), abs=1e-5)
    assert figures.simulated_seconds == pytest.approx((prefill_ms(100) + 2 * decode_ms(2 / 16384)) / 1000)
    assert figures.tokens_per_second == pytest.approx(3 / figures.simulated_seconds)


def test_a_prompt_that_was_there_is_hit() -> None:
    """The second request finds the first one's whole block, and not the part of a block after it."""
    figures, _ = sent(line(), line(timestamp=1000.0))
    assert figures.hit_ratio == pytest.approx(64 / 200)
    assert figures.ttft_p99_ms == pytest.approx(prefill_ms(100), abs=1e-5)
    assert figures.ttft_p50_ms == pytest.approx(prefill_ms(36), abs=1e-5)


def test_an_answer_that_is_named_can_be_hit() -> None:
    """The next turn holds prompt and answer; without the answer's ids only the prompt's whole blocks are known."""
    second = line(timestamp=5000.0, input_length=180, hash_ids=[1, 2, 3])
    named, _ = sent(line(output_length=60, output_hash_ids=[3]), second)
    unnamed, _ = sent(line(output_length=60), second)
    assert named.hit_ratio == pytest.approx(128 / 280)
    assert unnamed.hit_ratio == pytest.approx(64 / 280)


def test_names_are_those_of_the_tokens() -> None:
    """A prompt's names and tail are what hashing its tokens gives, for ids of one block and of several."""
    call = Call(0, 0, 300, 5, [7, 8])
    tokens = [7] * 256 + [8] * 44
    names, tail = Prompts(BLOCK, 256).prompt(call)
    assert names == sequence_hashes(block_hashes(tokens, BLOCK))
    assert tail == tokens[256:]
    assert Prompts(BLOCK, 256).answer(Call(0, 0, 300, 5, [7, 8], [9]), 0, 214) == [8] * 212 + [9] * 2
    assert len(set(Prompts(BLOCK, 256).answer(call, 4, 5)) & {7, 8}) == 0


def test_a_turn_waits_for_the_answer_before() -> None:
    """It is sent `delay` after the end of the one before of its session, whenever that is."""
    first = line(session_id="a", output_length=50)
    figures, _ = sent(first, line(session_id="a", timestamp=None, delay=250.0, output_length=1, hash_ids=[8, 9]))
    alone, _ = sent(first)
    assert figures.simulated_seconds == pytest.approx(alone.simulated_seconds + 0.25 + prefill_ms(100) / 1000, abs=1e-7)


def test_prompts_that_no_engine_takes_are_refused() -> None:
    """As the mocker refuses them; the session goes on, and answers end where the cache does."""
    long = line(input_length=64 * 20, hash_ids=list(range(20)), session_id=1)
    figures, _ = sent(long, line(session_id=1, delay=0.0, output_length=9999), num_gpu_blocks=10, watermark=0.0)
    assert (figures.refused, figures.requests) == (1, 1)
    assert figures.tokens_per_second * figures.simulated_seconds == pytest.approx(64 * 10 - 1 - 100)


def test_a_gap_of_a_preempted_request_is_whole() -> None:
    """A request that is sent back to the queue in the middle: its clients wait, and that is counted."""
    both = [line(output_length=500, hash_ids=[n, n + 1], timestamp=n / 10) for n in (1, 5)]
    figures, _ = sent(*both, num_gpu_blocks=12, watermark=0.0)
    alone, _ = sent(both[0], num_gpu_blocks=12, watermark=0.0)
    assert figures.preemptions > 0
    assert figures.itl_p99_ms < 40
    _, cluster = sent(*both, num_gpu_blocks=12, watermark=0.0)
    assert sum(cluster.seen.gaps.values()) == 2 * 499
    assert max(cluster.seen.gaps) * 1e-9 > 0.3 * alone.simulated_seconds


@pytest.mark.parametrize("mode", ROUTER_MODES)
def test_ranks_take_what_they_would_as_workers(mode: str) -> None:
    """Six requests at once on one worker of three ranks: two each; in kv mode the same ones are hit again."""
    wave = [line(hash_ids=[n, n + 50], output_length=40) for n in range(6)]
    again = [line(hash_ids=[n, n + 50], timestamp=9000.0) for n in range(6)]
    figures, cluster = sent(*wave, mode=mode, data_parallel_size=3)
    assert len(cluster.engines) == 3
    assert sorted(engine.stepper.scheduler.pool.cached for engine in cluster.engines) == [2 * 2, 2 * 2, 2 * 2]
    assert figures.ttft_p50_ms < sent(*wave, mode=mode)[0].ttft_p50_ms
    if mode == "kv":
        twice, _ = sent(*wave, *again, mode=mode, data_parallel_size=3)
        assert twice.hit_ratio == pytest.approx(64 / 200)


def test_ranks_are_skipped_through_alike() -> None:
    """The same numbers step by step, and for the same seed."""
    engine = read_arguments({"data_parallel_size": 3, "num_gpu_blocks": 700, "max_num_seqs": 6}, BLOCK)
    seen = []
    for skips in (True, False, True):
        cluster = Cluster(Setup(2, engine, skips=skips), "kv", Prompts(BLOCK, BLOCK))
        cluster.run(calls(generate("shared-prefix", 60, 6.0, 1)))
        seen.append((list(cluster.seen.first), cluster.seen.gaps, cluster.seen.tokens_cached))
    assert seen[0] == seen[1] == seen[2]


def test_prefill_engines_by_themselves_are_refused() -> None:
    """With a sentence, not with figures of something else."""
    args = ["--workload", "shared-prefix", "--requests", "5", "--engine-args", '{"is_prefill": true}']
    result = CliRunner().invoke(simulate, args)
    assert (result.exit_code, "can't be simulated" in result.output) == (1, True)


@pytest.mark.parametrize("mode", ROUTER_MODES)
def test_the_same_seed_gives_the_same_numbers(mode: str) -> None:
    """Twice the same; everything ends; another seed is another trace."""

    def run(seed: int) -> tuple[Figures, int]:
        result = calls(generate("agent", 120, 1.0, seed))
        cluster = Cluster(Setup(3, read_arguments({"num_gpu_blocks": 2000}, BLOCK), seed=seed), mode, Prompts(64, 64))
        cluster.run(result)
        assert all(engine.due is None for engine in cluster.engines)
        assert all(engine.stepper.scheduler.pool.used == 0 for engine in cluster.engines)
        return figures(mode, cluster, 0), len(cluster.seen.first)

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert run(1)[1] == 120 - run(1)[0].refused


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(sorted(SHAPES)), st.sampled_from([600, 1500]), st.booleans())
def test_skipping_steps_changes_no_number(seed: int, workload: str, blocks: int, caching: bool) -> None:
    """Every first token, every gap and every hit are the same when each step is taken by itself."""
    engine = read_arguments({"num_gpu_blocks": blocks, "max_num_seqs": 6, "enable_prefix_caching": caching}, BLOCK)
    seen = []
    for skips in (True, False):
        cluster = Cluster(Setup(2, engine, seed=seed, skips=skips), "kv", Prompts(BLOCK, SHAPES[workload].block))
        cluster.run(calls(generate(workload, 25, 3.0, seed)))
        seen.append(cluster.seen)
    assert seen[0].first == seen[1].first
    assert seen[0].gaps == seen[1].gaps
    assert (seen[0].tokens_cached, seen[0].last) == (seen[1].tokens_cached, seen[1].last)


def test_a_run_without_events_skips_most_steps() -> None:
    """A lone answer of 640 tokens needs few steps of the event loop, not 640."""
    cluster = Cluster(Setup(1, read_arguments({}, BLOCK)), "random", Prompts(BLOCK, BLOCK))
    cluster.run(calls([line(output_length=640)]))
    assert 20 <= cluster.steps <= 30


def test_the_router_is_worth_it() -> None:
    """Shared prefixes are hit more with the kv router than by any other choice, and the first token comes sooner."""
    table = {}
    for mode in ("round-robin", "random", "kv"):
        cluster = Cluster(Setup(4, read_arguments({}, BLOCK)), mode, Prompts(BLOCK, BLOCK))
        cluster.run(calls(generate("shared-prefix", 240, 1.0, 0)))
        table[mode] = figures(mode, cluster, 0)
    assert table["kv"].hit_ratio > 0.8
    assert table["kv"].hit_ratio > max(table["random"].hit_ratio, table["round-robin"].hit_ratio) + 0.1
    assert table["kv"].ttft_p50_ms <= min(table["random"].ttft_p50_ms, table["round-robin"].ttft_p50_ms)


@pytest.mark.parametrize("name", SHAPES)
def test_made_up_traces_are_readable_and_grow(name: str) -> None:
    """What is written can be read again; every turn begins as the one before ended."""
    made = list(generate(name, 200, 2.0, 3))
    assert len(made) == 200
    assert all(len(item.hash_ids) == -(-item.input_length // SHAPES[name].block) for item in made)
    before: dict[Any, TraceLine] = {}
    for entry in made:
        if (last := before.get(entry.session_id)) is not None:
            hashes = last.hash_ids + (last.output_hash_ids or [])
            assert entry.hash_ids[: len(hashes)] == hashes
            assert entry.input_length > last.input_length + last.output_length
            assert entry.delay is not None
        before[entry.session_id] = entry
    assert len(before) > 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"timestamp": 0, "input_length": 10, "output_length": 1', "line 2: Input data was truncated"),
        (
            '{"timestamp": 0, "output_length": 1, "hash_ids": [0]}',
            "line 2: Object missing required field `input_length`",
        ),
        ('{"timestamp": 0, "input_length": "x", "output_length": 1, "hash_ids": [0]}', r"line 2: .*\$.input_length"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [0]}', r"line 2: .*>= 0.*\$.timestamp"),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [0]}',
            "513 tokens are 2 blocks of 512",
        ),
        ('{"input_length": 1, "output_length": 1, "hash_ids": [0]}', "neither a timestamp nor a session_id"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [5000000000]}', "hash_ids"),
        ("[1]", "line 2: Expected `object`"),
        ("\ufffd", "line 2"),
    ],
)
def test_a_bad_line_is_named(text: str, says: str) -> None:
    """Its number, and what is wrong with it."""
    good = b'{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [0]}\n'
    with pytest.raises(TraceError, match=says):
        list(parse([good, text.encode()], 512, "t.jsonl"))


def test_percentiles_count_how_often() -> None:
    """As if each value stood there so many times."""
    assert percentile([(1, 98), (5, 1), (9, 1)], 50) == 1
    assert percentile([(1, 98), (5, 1), (9, 1)], 99) == 5
    assert percentile([(1, 98), (5, 1), (9, 1)], 100) == 9
    assert percentile([], 50) == 0


def test_a_plot_has_a_line_for_each_mode() -> None:
    """Later first tokens lie further to the right, all requests are at the top; a mode without any is left out."""
    root = ElementTree.fromstring(plot({"kv": [20_000_000] * 9 + [90_000_000], "random": [200_000_000] * 4, "x": []}))
    lines = [entry.attrib["points"].split() for entry in root.iter("{http://www.w3.org/2000/svg}polyline")]
    assert len(lines) == 2
    ends = [tuple(map(float, line[-1].split(","))) for line in lines]
    assert ends[0][0] < ends[1][0]
    assert ends[0][1] == ends[1][1] == 20.0
    names = [entry.text for entry in root.iter("{http://www.w3.org/2000/svg}text")]
    assert names[-2:] == ["kv", "random"]
    assert {"10", "100", "1000", "50%"} <= set(names)
    assert plot({}).endswith("</svg>\n")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments)


def test_the_command_prints_a_table_and_json(tmp_path: Path) -> None:
    """Every mode has a line; JSON is twice the same; a written trace gives what its workload gives."""
    shape = ("--workers", "2", "--router-mode", "kv", "--router-mode", "random")
    shown = invoke("--workload", "shared-prefix", "--requests", "60", *shape)
    assert shown.exit_code == 0
    assert [text.split()[0] for text in shown.output.splitlines()] == ["router", "kv", "random"]
    first = invoke("--workload", "shared-prefix", "--requests", "60", *shape, "--json")
    assert first.output == invoke("--workload", "shared-prefix", "--requests", "60", *shape, "--json").output
    assert [load["mode"] for load in json.loads(first.output)] == ["kv", "random"]
    drawn = tmp_path / "e.svg"
    assert (
        invoke("--workload", "shared-prefix", "--requests", "60", *shape, "--plot", str(drawn)).output == shown.output
    )
    assert drawn.read_text().count("<polyline") == 2
    file = str(tmp_path / "e.jsonl")
    assert "60 requests" in invoke("--workload", "shared-prefix", "--requests", "60", "--write-trace", file).output
    again = invoke(file, "--trace-block-size", "64", *shape, "--json")
    assert again.output == first.output


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "name a trace file"),
        (("missing.jsonl",), 1, "missing.jsonl: No such file"),
        (("x", "--workload", "shared-prefix"), 2, "name a trace file"),
        (("--workload", "shared-prefix", "--engine-args", "{"), 1, "no JSON"),
        (("--workload", "shared-prefix", "--engine-args", '{"speedup_ration": 1}'), 1, "did you mean 'speedup_ratio'"),
        (
            ("--workload", "shared-prefix", "--engine-args", '{"block_size": 48}'),
            1,
            "no multiple of the engine's blocks of 48",
        ),
        (("--workload", "shared-prefix", "--trace-block-size", "16"), 1, "is 64"),
        (("x", "--write-trace", "y"), 2, "goes with --workload"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], code: int, says: str) -> None:
    """Exit code 2 for usage, 1 for what is in files; never a traceback."""
    result = invoke(*arguments)
    assert result.exit_code == code
    assert says in result.output
    assert "Traceback" not in result.output
