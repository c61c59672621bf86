"""in=batch as its users start it: a thousand lines on the mocker, killed half-way, gone on with."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.environments import quick_environment
from tests.processes import RUN, Process, piped

LINES = 1000
pytestmark = pytest.mark.processes


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "output.jsonl").read_text().splitlines()]


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """A line with a thousand prompts (every tenth of OpenAI's form) and a mocker that answers with 8 tokens."""
    lines: list[dict[str, Any]] = [{"text": f"prompt {number}"} for number in range(LINES)]
    for number in range(0, LINES, 10):
        body = {"prompt": f"prompt {number}"}  # its length is the template's, too
        lines[number] = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "template.json").write_text('{"max_completion_tokens": 8}')
    return [f"in=batch:{tmp_path}/in.jsonl", "out=mocker", "--request-template", f"{tmp_path}/template.json"]


@pytest.mark.timeout(240)
def test_a_batch_that_is_killed_half_way_loses_and_doubles_nothing(tmp_path: Path, words: list[str]) -> None:
    """SIGKILL in the middle, the same line again: a thousand lines, each once, exact counts."""
    output = tmp_path / "output.jsonl"
    half = LINES // 2
    first = Process("first", [*RUN, *words], tmp_path, quick_environment(tmp_path))
    try:
        deadline = time.monotonic() + 100
        while not output.exists() or output.read_bytes().count(b"\n") < half:
            assert time.monotonic() < deadline, first.text()
            assert first.popen.poll() is None, first.text()
            time.sleep(0.005)
    finally:
        first.kill()
    before = output.read_bytes().count(b"\n")
    assert half <= before < LINES
    done = piped(tmp_path, "", *words)
    assert done.returncode == 0, done.stderr
    assert f"of {LINES} lines were in" in done.stderr
    assert f"With the runs before: {LINES} lines" in done.stderr
    assert f"{8 * LINES} tokens out" in done.stderr
    files = written(tmp_path)
    names = [line["text"].removeprefix("prompt ") if "text" in line else line["custom_id"] for line in files]
    assert sorted(map(int, names)) == list(range(LINES))
    assert {line["tokens_out"] for line in files if "text" in line} == {8}
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in files if "text" not in line} == {8}
    assert not (tmp_path / "output.jsonl.progress").exists()


def test_order_and_bad_lines(tmp_path: Path) -> None:
    """Answers in the input's order; a bad line is told, stands in the output and does not end the run."""
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\nnot json\n\n{"text": "three"}\n')
    done = piped(tmp_path, "", f"in=batch:{tmp_path}/in.jsonl", "out=echo", "--batch-ordered")
    assert done.returncode == 1
    assert "line 2: no JSON" in done.stderr
    assert "Ran 3 files in" in done.stderr
    assert [line.get("response", line.get("line")) for line in written(tmp_path)] == ["one", 2, "three"]


def test_a_missing_file_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    """NVIDIA Dynamo's sentence, exit code 1."""
    done = piped(tmp_path, "", f"in=batch:{tmp_path}", "out=mocker", "--model-path", "/does/not/exist")
    assert done.returncode == 1
    assert done.stderr == f"error: Missing or not a file: {tmp_path}. Should be a JSON Lines file.\n"
