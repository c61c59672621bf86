"""The folder of a pipeline's state, removed or closed while it is needed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamo.cli.local.state import HeldError, PartState, PipelineState, RunState, holder_of, is_running, read_state
from dynamo.cli.main import dynamo, main


def state_of(pid: int) -> RunState:
    part = PartState("worker-0", "worker", "worker", "ready", 0.0, pid)
    return RunState("run-id", 1, 0.0, "f.yaml", "p", "p", "model", "http://u", parts=[part])


def test_a_folder_that_is_removed_is_made_anew(tmp_path: Path) -> None:
    """With its lock; where another run has the folder by then, it stays that one's."""
    held = PipelineState.acquire(tmp_path, "p", "a.yaml")
    held.write(state_of(1))
    assert not held.is_damaged
    shutil.rmtree(tmp_path / "p")
    assert held.is_damaged
    held.write(state_of(1))
    assert (read_state(held.folder), is_running(held.folder), held.is_damaged) == (state_of(1), True, False)
    assert holder_of(held.folder) == (str(os.getpid()), "a.yaml")
    with pytest.raises(HeldError):
        PipelineState.acquire(tmp_path, "p", "b.yaml")
    shutil.rmtree(tmp_path / "p")
    other = PipelineState.acquire(tmp_path, "p", "b.yaml")
    other.write(state_of(2))
    held.write(state_of(1))
    held.release()
    assert (read_state(other.folder), is_running(other.folder)) == (state_of(2), True)
    other.release()


def test_a_state_that_cannot_be_written(tmp_path: Path) -> None:
    """A file in the folder's place: one sentence of `up` and `up -d`, with the command that moves it away."""
    (tmp_path / "p.yaml").write_text(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: p}\n"
        "spec: {components: [{engine: mocker}]}\n"
    )
    (tmp_path / "dynamo").write_text("")
    for words in (["-d"], []):
        done = CliRunner().invoke(
            dynamo, ["up", *words, str(tmp_path / "p.yaml")], env={"XDG_STATE_HOME": str(tmp_path)}
        )
        assert (done.exit_code, "XDG_STATE_HOME" in done.output) == (1, True), done.output
        assert f"mv {tmp_path}/dynamo {tmp_path}/dynamo.aside" in done.output


@pytest.mark.parametrize("command", ["ps", "down", "clean"])
def test_a_folder_of_states_that_may_not_be_read(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, with what opens it."""

    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "dynamo").mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(SystemExit) as ended:
        main([command])
    assert (ended.value.code, f"chmod u+rwx {tmp_path}/dynamo" in capsys.readouterr().err) == (1, True)


def test_a_state_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor says whose it is, and what opens it."""
    (tmp_path / "dynamo" / "p").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, _mode: not str(path).endswith("dynamo/p"))
    done = CliRunner().invoke(dynamo, ["doctor", "p"], env={"XDG_STATE_HOME": str(tmp_path)})
    assert (done.exit_code, "chmod u+rwx" in done.output) == (1, True), done.output
