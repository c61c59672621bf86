"""`dynamo up -d`, `down`, `clean`, `models`, and whose logs `logs` prefers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from dynamo.cli.commands.logs import Source, select
from dynamo.cli.main import dynamo

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't


def test_up_detached_serves_and_down_ends_it(place: Workplace) -> None:
    """It outlives the command that started it, `ps` shows it, and nothing of it survives `down`."""
    place.fake()
    file = place.write()
    done = place.run("up", str(file), "-d", "--http-port", "0")
    assert done.returncode == 0, done.stderr
    assert "dynamo down ends it" in done.stdout
    assert "worker-0" in place.run("ps").stdout
    again = place.run("up", str(file), "-d", "--http-port", "0")
    assert (again.returncode, "is up already" in again.stderr) == (1, True)
    assert place.run("down", "tset").returncode == 1
    assert place.run("down").stdout == "ended: test\n"
    assert "nothing is up" in place.run("down").stdout
    cleaned = place.run("clean")
    assert f"removed {place.state / 'dynamo' / 'test'} " in cleaned.stdout
    assert list((place.state / "dynamo").iterdir()) == []


def test_up_detached_says_why_it_failed(place: Workplace) -> None:
    """The end of its log, and its exit code."""
    file = place.write(text="apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: t}\n"
                                "spec: {model: {source: ./none.gguf}, components: [{engine: mocker}]}\n")  # fmt: skip
    done = place.run("up", str(file), "-d")
    assert done.returncode == 1
    assert "no model at" in done.stderr


def test_logs_prefer_what_is_up() -> None:
    """A name that is a part of several pipelines means that of the one that runs."""
    sources = [Source("dead", "worker-0", Path("a")), Source("alive", "worker-0", Path("b"))]
    assert select(sources, "worker-0", lambda pipeline: pipeline == "alive") == sources[1:]
    assert select(sources, None, lambda pipeline: pipeline == "alive") == sources[1:]
    assert select(sources, None) == sources
    assert select(sources, "dead", lambda pipeline: pipeline == "alive") == sources[:1]


@pytest.mark.parametrize("word", ["list", "pull", "serve", "stop", "chat", "help"])
def test_words_of_other_programs_are_understood(word: str) -> None:
    """Exit code 2, and the command that does it."""
    done = CliRunner().invoke(dynamo, [word])
    assert (done.exit_code, "Here it is: dynamo " in done.stderr) == (2, True)


def test_models_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listed with their size, removed by name."""
    repo = tmp_path / "models--org--tiny"
    commit = "a" * 40
    for folder in ("blobs", "refs", f"snapshots/{commit}"):
        (repo / folder).mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    (repo / "blobs" / "weights").write_bytes(b"x" * 2048)
    (repo / "snapshots" / commit / "model.gguf").symlink_to(repo / "blobs" / "weights")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.utils._cache_manager.HF_HUB_CACHE", str(tmp_path))
    listed = CliRunner().invoke(dynamo, ["models", "list"])
    assert "org/tiny  2.0 KiB  1" in listed.output
    near = CliRunner().invoke(dynamo, ["models", "rm", "org/tiyn", "-y"])
    assert (near.exit_code, "did you mean org/tiny?" in near.stderr) == (1, True)
    gone = CliRunner().invoke(dynamo, ["models", "rm", "org/tiny", "-y"])
    assert (gone.exit_code, repo.exists()) == (0, False), gone.output
    assert "no models are here" in CliRunner().invoke(dynamo, ["models", "list"]).output


@pytest.mark.parametrize(
    ("file", "says"), [("model.gguf", "dynamo run in=http model.gguf"), ("none.yaml", "`dynamo example` lists")]
)
def test_up_says_what_else_was_meant(file: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model has a command of its own, and a file must be there."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(dynamo, ["up", file])
    assert (done.exit_code, says in " ".join(done.stderr.split())) == (2, True)
