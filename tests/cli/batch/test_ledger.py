"""A batch's output after every kind of end: nothing lost, nothing doubled."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamo.cli.batch.ledger import BatchError, Task, open_ledger, progress_of, survey
from dynamo.cli.batch.output_lines import Outcome
from dynamo.cli.run.batch import prepared
from dynamo.cli.run.main import read

TASK = Task("digest", 5, False, "mocker")


def outcome(number: int) -> Outcome:
    return Outcome(number, {"n": number, "text": "größer\n"}, 1, 2, "why" if number == 3 else "")


def written(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """The output of a run that wrote three lines and died."""
    path = tmp_path / "output.jsonl"
    with open_ledger(path, TASK, restart=False) as ledger:
        for number in (2, 1, 3):
            ledger.add(outcome(number))
    return path


def resumed(path: Path) -> set[int]:
    with open_ledger(path, TASK, restart=False) as ledger:
        return set(ledger.done)


def test_a_run_goes_on(interrupted: Path) -> None:
    """What is there stays, with its statistics; what is missing is added; at the end nothing is left to resume."""
    with open_ledger(interrupted, TASK, restart=False) as ledger:
        assert ledger.done == {1, 2, 3}
        assert (ledger.earlier.entries, ledger.earlier.tokens_out, ledger.earlier.failed) == (3, 6, 1)
        for number in (5, 4):
            ledger.add(outcome(number))
        ledger.finish()
    assert written(interrupted) == [2, 1, 3, 5, 4]
    assert not progress_of(interrupted).exists()


@pytest.mark.parametrize("output", [True, False])
@pytest.mark.parametrize("cut", range(1, 25))
def test_a_death_within_a_write_is_mended(interrupted: Path, cut: int, output: bool) -> None:
    """However much of the last lines of either file is missing, both are cut to what is whole."""
    file = interrupted if output else progress_of(interrupted)
    file.write_bytes(file.read_bytes()[:-cut])
    done = resumed(interrupted)
    assert set(written(interrupted)) == done < {1, 2, 3}


def test_a_line_without_its_record_is_asked_again(interrupted: Path) -> None:
    """The output is ahead of the progress file when a process dies between the two writes."""
    with interrupted.open("a") as file:
        file.write('{"n": 4}\n{"n":')
    assert resumed(interrupted) == {1, 2, 3}
    assert written(interrupted) == [2, 1, 3]


def test_records_without_their_lines_count_for_nothing(interrupted: Path) -> None:
    """After a power cut the output may be shorter than its records say, or hold zeros."""
    text = interrupted.read_bytes()
    interrupted.write_bytes(text[:-5] + b"\0" * 5)
    assert resumed(interrupted) == {1, 2}
    assert written(interrupted) == [2, 1]


def test_only_one_run_writes(interrupted: Path) -> None:
    """A second process is refused while the first one has the files open."""
    with (
        open_ledger(interrupted, TASK, restart=False),
        pytest.raises(BatchError, match="another run is writing"),
        open_ledger(interrupted, TASK, restart=False),
    ):
        pass


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(TASK, input="x"), "the input has changed"),
        (replace(TASK, ordered=True), "--batch-ordered differs"),
        (replace(TASK, answerer="llamacpp"), "answerer was 'mocker', is 'llamacpp'"),
    ],
)
def test_another_batch_is_not_mixed_in(interrupted: Path, other: Task, says: str) -> None:
    """A half output is gone on with by the same batch only; --batch-restart starts over and keeps the old lines."""
    with pytest.raises(BatchError) as caught, open_ledger(interrupted, other, restart=False):
        pass
    assert says in str(caught.value)
    assert written(interrupted) == [2, 1, 3]
    with open_ledger(interrupted, other, restart=True) as ledger:
        ledger.add(outcome(5))
        assert ledger.done == {5}
    assert written(interrupted) == [5]
    assert written(interrupted.with_name("output.jsonl.bak")) == [2, 1, 3]


def test_a_start_that_died_at_once_is_no_start(tmp_path: Path) -> None:
    """A progress file without a whole first line belongs to nobody; the output beside it is set aside."""
    path = tmp_path / "output.jsonl"
    path.write_text('{"n": 9}\n')
    progress_of(path).write_text('{"version": 1, "inp')
    assert resumed(path) == set()
    assert written(path.with_name("output.jsonl.bak")) == [9]


def test_a_folder_that_can_not_be_written_is_said(tmp_path: Path) -> None:
    """A missing folder is one sentence."""
    with (
        pytest.raises(BatchError, match="can't be opened: No such file"),
        open_ledger(tmp_path / "no" / "output.jsonl", TASK, restart=False),
    ):
        pass


def test_an_input_is_surveyed(tmp_path: Path) -> None:
    """Lines that are not blank are counted; any change of the file changes what it is."""
    file = tmp_path / "in.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": "b"}')
    first = survey(file, True, "echo")
    assert (first.entries, first.ordered) == (2, True)
    file.write_text('{"text": "a"}\n\n{"text": "c"}')
    assert survey(file, True, "echo").input != first.input


def test_other_defaults_of_requests_are_another_batch(tmp_path: Path) -> None:
    """Half of the answers at one temperature and half at another would be nobody's batch."""
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    templates = [tmp_path / "cold.json", tmp_path / "hot.json"]
    for file, heat in zip(templates, (0.0, 1.5), strict=True):
        file.write_text(json.dumps({"temperature": heat}))
    cold, hot = (
        read([f"in=batch:{tmp_path / 'in.jsonl'}", "out=echo", "--request-template", str(file)],
             terminal=False, installed=())
        for file in templates
    )  # fmt: skip
    with prepared(cold) as batch:
        batch.ledger.add(outcome(1))
    with pytest.raises(BatchError, match=r"of another batch.*temperature"), prepared(hot):
        pass
    with prepared(cold) as batch:
        assert batch.ledger.done == {1}
