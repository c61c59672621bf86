"""Models of the hub, loaded by real processes from a stand-in: once for all, resumed, refused with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.llm.stand_in_hub import Hub

from dynamo.llm.hub import wanted

WEIGHTS = bytes(range(256)) * 8192
"""Two megabytes."""
PATIENT = "import time; time.sleep = lambda _: None; from dynamo.worker.fetch import main; main()"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """With one model."""
    folder = tmp_path / "served" / "org" / "tiny"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text(f'{{"name": "{name}"}}')
    with Hub(tmp_path / "served") as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def start(url: str, home: Path, *words: str, token: str = "") -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*"} | ({"HF_TOKEN": token} if token else {})
    command = [sys.executable, "-c", PATIENT, *words]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


def folder_of(out: str) -> Path:
    return Path(out.strip().rpartition(" is in ")[2])


def test_four_at_once_load_each_file_once(hub: Hub, tmp_path: Path) -> None:
    """As four pods with one volume do; whoever comes later loads nothing."""
    hub.pause = 0.02
    several = [start(hub.url, tmp_path, "--engine", "llamacpp", "--model-path", "hf://org/tiny") for _ in range(4)]
    answers = [ended(process) for process in several]
    assert [code for code, _, _ in answers] == [0] * 4, answers
    (folder,) = {folder_of(out) for _, out, _ in answers}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert {name: hub.downloads(name) for name in ("model.safetensors", "tokenizer.json")} == {
        "model.safetensors": 1, "tokenizer.json": 1,
    }  # fmt: skip
    assert ended(start(hub.url, tmp_path, "--model-path", "hf://org/tiny"))[0] == 0
    assert hub.downloads("model.safetensors") == 1


def test_one_that_is_killed_hinders_nobody(hub: Hub, tmp_path: Path) -> None:
    """Its lock goes with it, and the file is whole in the end."""
    hub.pause = 0.1
    first = start(hub.url, tmp_path, "--model-path", "hf://org/tiny")
    while not hub.downloads("model.safetensors"):
        assert first.poll() is None, first.communicate()
    first.kill()
    first.communicate()
    hub.pause = 0
    code, out, err = ended(start(hub.url, tmp_path, "--model-path", "hf://org/tiny"))
    assert code == 0, err
    assert (folder_of(out) / "model.safetensors").read_bytes() == WEIGHTS


def test_simulated_engines_need_no_weights(hub: Hub, tmp_path: Path) -> None:
    """Only what says how the model is talked to."""
    code, out, err = ended(start(hub.url, tmp_path, "--engine", "mocker", "--model-path", "hf://org/tiny"))
    assert code == 0, err
    assert sorted(path.name for path in folder_of(out).iterdir()) == ["config.json", "tokenizer.json"]


def test_a_gated_model_needs_the_token(hub: Hub, tmp_path: Path) -> None:
    """It is said how to give one, and nobody reads it anywhere."""
    hub.token = "hf_secret"
    code, _, err = ended(start(hub.url, tmp_path, "--model-path", "hf://org/tiny"))
    assert code == 1
    assert "spec.model.tokenSecret" in err
    code, out, err = ended(start(hub.url, tmp_path, "--model-path", "hf://org/tiny", token="hf_secret"))
    assert code == 0, err
    assert "hf_secret" not in out + err


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf://org/tinny", "no such model"),
        ("hf://org/tiny@v9", "no such revision"),
        ("hf://org", "use hf://org/repo"),
        ("", "use hf://org/repo"),
    ],
)
def test_what_is_wrong_is_one_sentence(hub: Hub, tmp_path: Path, source: str, said: str) -> None:
    """With the remedy, and without a traceback."""
    code, _, err = ended(start(hub.url, tmp_path, "--model-path", source))
    assert code == 1
    assert said in err
    assert "Traceback" not in err


def test_without_the_hub_what_is_whole_serves(hub: Hub, tmp_path: Path) -> None:
    """A worker that starts again while the hub is down finds its model; one that never had it is told why not."""
    home = tmp_path / "home"
    assert ended(start(hub.url, home, "--model-path", "hf://org/tiny"))[0] == 0
    nobody = "http://127.0.0.1:9"
    code, out, err = ended(start(nobody, home, "--model-path", "hf://org/tiny"))
    assert code == 0, err
    assert (folder_of(out) / "model.safetensors").read_bytes() == WEIGHTS
    code, _, err = ended(start(nobody, tmp_path / "other", "--model-path", "hf://org/tiny"))
    assert code == 1
    assert "HF_ENDPOINT" in err
    assert "Traceback" not in err


def test_the_files_that_an_engine_reads() -> None:
    """Weights once, no pictures, no other program's copies; a repository with torch files alone keeps them."""
    both = ["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md", ".gitattributes"]
    assert wanted(both, weights=True) == ["config.json", "model.safetensors"]
    assert wanted(["config.json", "pytorch_model.bin"], weights=True) == ["config.json", "pytorch_model.bin"]
    assert wanted([*both, "tokenizer.model", "sub/config.json"], weights=False) == ["config.json", "tokenizer.model"]
