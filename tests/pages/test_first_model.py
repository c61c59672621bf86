"""The guides' first steps: help, a chat in a terminal, a pipe, models of the hub, a server, log lines."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.environments import quick_environment
from tests.llm.stand_in_hub import Hub
from tests.pages.printed import Rows, chat, command, run_all, serving
from tests.processes import RUN, answered
from tests.terminal import on_terminal
from tests.worker import fetching
from tests.worker.chain_model import write_gguf

from dynamo.cli.run.grammar import DEFAULTS
from dynamo.cli.run.main import read

USAGE = (
    "in=http out=dyn --http-port 8080 --router-mode kv --kv-overlap-score-weight=1.0 --router-temperature=0.0 "
    "--use-kv-events=true -v",
    "in=dyn://a.b.c out=llamacpp --model-path p --model-name n --model-config c --tensor-parallel-size=1 "
    "--context-length=8 --num-nodes=1 --node-rank=0 --leader-addr=127.0.0.1:9876 --base-gpu-id=0 "
    "--extra-engine-args=args.json -vv",
)
"""The usage line of two guides, its flags on the side that they belong to."""
pytestmark = pytest.mark.processes


def test_help_names_what_the_usage_lines_name(rows: Rows, tmp_path: Path) -> None:
    """--help ends well and has each flag of the usage lines, and the grammar takes them together."""
    rows.shows("usage")
    done = answered(command(rows["help"], {}), "", quick_environment(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    flags = {word.split("=")[0] for line in USAGE for word in line.split() if word.startswith("--")}
    assert {flag for flag in flags if flag not in done.stdout} == set()
    for line in USAGE:
        assert read(line.split(), terminal=True, installed=DEFAULTS).words.verbosity


def test_a_gguf_file_in_a_terminal(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """A chat with a file: a prompt, the model's answer, Ctrl-D; no library path is set."""
    env = quick_environment(tmp_path)
    rows.shows("library path")
    env.pop("LD_LIBRARY_PATH", None)
    with on_terminal(command(rows["gguf"], own, "--request-template", own["GREEDY"]), env) as terminal:
        terminal.wait_for("a prompt", b"User:")
        terminal.type(b"1 2 3\r")
        terminal.wait_for("the answer", b"\x1b[?2004l45\r\n")
        terminal.type(b"\x04")
        assert terminal.process.wait(15) == 0


def test_a_pipe(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """Files are llama.cpp's, folders mistral.rs's, without saying so; standard output has the answer alone."""
    greedy = ("--request-template", own["GREEDY"])
    for name in ("pipe", "folder"):
        done = answered(command(rows[name], own, *greedy), "1 2 3\n", quick_environment(tmp_path))
        assert (done.returncode, done.stdout, done.stderr) == (0, "45\n", "")


@pytest.fixture
def hub(own: dict[str, str], tmp_path: Path) -> Iterator[Hub]:
    """A hub that asks for a token, with the model as a folder and as a file."""
    shutil.copytree(own["CHECKOUT"], tmp_path / "served/org/chain")
    (tmp_path / "served/org/chain-GGUF").mkdir()
    shutil.copy(own["MODEL.gguf"], tmp_path / "served/org/chain-GGUF/chain-F32.gguf")
    with fetching.serving(tmp_path / "served") as served:
        served.token = "hf_of_ours"
        yield served


def test_models_of_the_hub(rows: Rows, own: dict[str, str], hub: Hub, tmp_path: Path) -> None:
    """A model's name is enough, once it is in the cache without the hub; a token is asked for, and sent."""
    plain = quick_environment(tmp_path) | fetching.variables(hub.url, tmp_path / "cache")
    known = plain | {"HF_TOKEN": hub.token}
    words = {**own, "ORG/MODEL": "org/chain"}
    greedy = ("--request-template", own["GREEDY"])
    done = answered(command(rows["hub"], words), "3\n", plain)
    assert (done.returncode, done.stdout) == (1, "")
    assert "HF_TOKEN" in done.stderr.splitlines()[-1]
    rows.shows("token")
    done = answered(command(rows["hub"], words, *greedy), "3\n", known)
    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
    done = answered(command(rows["hub, whole"], words, *greedy), "3\n3\n", known | {"HF_HUB_OFFLINE": "1"})
    assert (done.returncode, done.stdout) == (0, "45\n45\n"), done.stderr
    assert "`dynamo-run ORG/MODEL/FILE.gguf`" in rows["download"].here
    done = answered([*RUN, "org/chain-GGUF/chain-F32.gguf", *greedy], "3\n", known)
    assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
    assert hub.downloads("model.safetensors") == hub.downloads("chain-F32.gguf") == 1


def test_a_server_of_a_file(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """The three ways to say it: the model is listed, and answers the chat of the guides."""
    env = quick_environment(tmp_path)
    rows.shows("list", "chat of 2049")
    own = {**own, "MODEL.gguf": str(write_gguf(tmp_path, 4096))}  # the guides' models have room for so many
    for name in ("http, flag", "http", "http, engine"):
        with serving(command(rows[name], own), tmp_path / "log", env) as client:
            assert [model.id for model in client.models.list()] == ["chain"]
            for most in ("max_tokens", "max_completion_tokens"):
                assert chat(client, "chain", "What comes after 1 2 3", **{most: 2049}) == "45"


def test_more_log_lines(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """DYN_LOG, -v and -vv show more; the guides' own lines lack a model, which the engine asks for."""
    env = quick_environment(tmp_path)
    rows.shows("log level")
    said = answered([*RUN, "out=echo"], "hi\n", env | {"DYN_LOG": "debug"})
    assert (said.returncode, said.stdout) == (0, "hi\n")
    assert "DEBUG" in said.stderr
    for name in ("debug", "trace"):
        words = rows[name].words()
        without, plain = run_all([(words, ""), (["out=echo", *words[2:]], "hi\n")], env)
        assert without.returncode == 1
        assert "needs --model-path" in without.stderr.splitlines()[-1]
        assert (plain.returncode, plain.stdout, "DEBUG" in plain.stderr) == (0, "hi\n", True)


def test_llama_cpp(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """Its lines of each year; with --model-config the folder's tokenizer and template are taken."""
    names = ("llama_cpp", "llamacpp", "llamacpp, config", "llamacpp, context")
    lines = [rows[name].words(**own) for name in names]
    greedy = ["--request-template", own["GREEDY"]]
    for done in run_all([([*words, *greedy], "3\n") for words in lines], quick_environment(tmp_path)):
        assert (done.returncode, done.stdout) == (0, "45\n"), done.stderr
        assert "note: --model-config" not in done.stderr
