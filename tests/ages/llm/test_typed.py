"""The strictly typed program runs, too; and what its imports cost."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys

import pytest
from docs.generate.compatibility import python_llm
from tests.ages.llm import typed_names

from dynamo.llm.serving import upper_layers
from dynamo.runtime import InvalidArgument

HEAVY = (
    "dynamo.frontend", "dynamo.worker", "dynamo.cli", "fastapi", "uvicorn", "tokenizers", "jinja2", "huggingface_hub",
    "aetcd", "nats", "vllm", "sglang", "mistralrs", "xllamacpp", "importlib.metadata",
)  # fmt: skip


def test_the_typed_program_runs() -> None:
    """What mypy believes of it is so."""
    done = asyncio.run(typed_names.main())
    assert (done["token_ids"], done["engine_data"]) == ([1, 2], {"id": 944132403})


@pytest.mark.parametrize(
    "names", ["register_llm, ModelType, ModelInput", "HttpService, HttpAsyncEngine", "make_engine, run_input"]
)
def test_names_are_imported_without_what_they_start(names: str) -> None:
    """Frontends, engines and tokenizers come when they are asked for."""
    code = f"import sys; from dynamo.llm import {names}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == "[]"


def test_the_parts_of_other_layers_are_there() -> None:
    """Under the names that this layer looks for; who lacks one is told what to install."""
    assert [part(str(part)) for part in (upper_layers.http_frontend, upper_layers.engine_host, upper_layers.talk)]
    code = (
        "import sys; sys.modules['fastapi'] = None\n"
        "from dynamo.llm.serving import upper_layers\n"
        "try: upper_layers.http_frontend('HttpService')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180)
    wanted = "HttpService needs fastapi, which is not installed: run pip install -e '.[frontend]' in the clone"
    assert done.stdout.strip() == f"InvalidArgument {wanted}"


def test_an_installation_without_a_layer_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has declared it: the extra that brings it is named."""
    monkeypatch.setattr(upper_layers, "GROUP", "dynamo.nobody")
    wanted = (
        (upper_layers.http_frontend, "HttpService needs the frontend", "frontend"),
        (upper_layers.engine_host, "run_input needs the worker", "worker"),
        (upper_layers.talk, "run_input needs the cli", "cli"),
    )
    for find, words, extra in wanted:
        with pytest.raises(InvalidArgument, match=rf"{words}, which is not .*'\.\[{extra}\]'"):
            find(words.split()[0])


def test_the_table_of_names_follows_what_can_be_imported() -> None:
    """Every name of NVIDIA Dynamo has a state; what is promised here and not NVIDIA Dynamo's is our own."""
    rows = list(python_llm.rows())
    assert [row for row in rows if not all(row)] == []
    assert {state for _, _, state, _ in rows} <= {"works", "refused", "not there"}
    module = importlib.import_module("dynamo.llm")
    for name, _, state, _ in rows:
        importable = name == "exceptions" or hasattr(module, name)
        assert importable == (state != "not there"), name
    refused = [getattr(module, name) for name, _, state, _ in rows if state == "refused"]
    for refusal in refused:
        with pytest.raises(InvalidArgument, match=f"dynamo.llm.{refusal.__name__}: "):
            asyncio.run(refusal()) if asyncio.iscoroutinefunction(refusal) else refusal()
