"""The guides' lines for vLLM, SGLang and TensorRT-LLM, up to the sentence that their packages are not here."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.generate.compatibility.printed_row import TO_THE_ENGINE
from docs.generate.compatibility.states import line_state
from tests.llm.stand_in_hub import Hub
from tests.pages.arguments import TOLD, told
from tests.pages.printed import Rows, run_all
from tests.worker import fetching

from dynamo.runtime.process.legacy_flags import REFUSED

pytestmark = [pytest.mark.processes, pytest.mark.servers, pytest.mark.timeout(200)]


@pytest.fixture
def hub(own: dict[str, str], tmp_path: Path) -> Iterator[Hub]:
    """With the model as ORG/MODEL."""
    shutil.copytree(own["CHECKOUT"], tmp_path / "served/org/chain")
    with fetching.serving(tmp_path / "served") as served:
        yield served


def test_lines_reach_their_engine(
    rows: Rows, own: dict[str, str], servers: dict[str, str], hub: Hub, tmp_path: Path
) -> None:
    """Each is understood, its model found, its engine told; the engine's package is what it ends with."""
    words = {**own, "ORG/MODEL": "org/chain"}
    mine = rows.all()
    assert {row.name for row in mine} >= set(TOLD)
    lines = [[*row.words(**words), *(["--http-port", "0"] if "in=http" in row.what else [])] for row in mine]
    env = servers | {name: value for name, value in fetching.variables(hub.url, tmp_path).items() if "HF_" in name}
    for row, line, done in zip(mine, lines, run_all([(line, "hi\n") for line in lines], env), strict=True):
        engine = next(word for word in line if word.startswith("out=")).removeprefix("out=")
        assert importlib.util.find_spec({"trtllm": "tensorrt_llm"}.get(engine, engine)) is None
        assert line_state(line)[0] == TO_THE_ENGINE
        assert (done.returncode, done.stdout) == (1, ""), (row, done)
        last = done.stderr.splitlines()[-1]
        assert any(f"engine {engine} {what}" in last for what in ("can't be loaded", "is not installed"))
        assert f".[{engine}]" in last
        arguments = told(row.words(**words), own["CHECKOUT"])
        assert {**arguments, **TOLD.get(row.name, {})} == arguments


def test_what_is_refused_says_what_to_do(rows: Rows, own: dict[str, str], servers: dict[str, str]) -> None:
    """Before anything is loaded: a file that vLLM doesn't read, nodes that it doesn't have here."""
    words = {**own, "HOST:PORT": "127.0.0.1:6539"}
    lines = [row.words(**words) for row in rows.all()]
    all_done = run_all([([*line, "--http-port", "0"], "hi\n") for line in lines], servers)
    for line, done in zip(lines, all_done, strict=True):
        state, why = line_state(line)
        assert state == REFUSED
        assert (done.returncode in (1, 2), done.stdout) == (True, ""), done
        assert why.split("; --model-config")[0].split("; leave")[0] in done.stderr


def test_a_built_engine_is_refused(rows: Rows, own: dict[str, str], servers: dict[str, str], tmp_path: Path) -> None:
    """A folder of trtllm-build's is told from a checkout, and what to name is said."""
    for name in ("config.json", "rank0.engine"):
        (tmp_path / name).write_text("{}")
    line = rows["trtllm, built"].words(**{**own, "ENGINE": str(tmp_path)})
    (done,) = run_all([(line, "hi\n")], servers)
    assert (done.returncode, done.stdout) == (1, "")
    assert "name the folder of the model itself" in done.stderr.splitlines()[-1]
