"""Why llama.cpp refuses a model, in its own words."""

from __future__ import annotations

from pathlib import Path

import pytest
import xllamacpp
from tests.llm.models.gguf_writer import gguf_bytes

from dynamo.worker.engines.llamacpp.load_errors import load_again, reason_in

OTHER = "0.00.004 E llama_model_load: error loading model: tensor 'w' is out of bounds\n0.00.005 E srv: exiting\n"


def test_reasons_among_lines() -> None:
    """The reason of the load, else the last error, else nothing."""
    assert reason_in(OTHER) == "tensor 'w' is out of bounds"
    assert reason_in("0.00.001 W odd\n0.00.005 E srv init: exiting\n") == "srv init: exiting"
    assert reason_in("loading\n") == ""


def test_an_architecture_that_is_not_known(tmp_path: Path) -> None:
    """The library's exception says nothing of it."""
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({"general.architecture": "newmodel9"}))
    params = xllamacpp.CommonParams()
    params.model.path = str(tmp_path / "m.gguf")
    params.verbosity = 1
    with pytest.raises(RuntimeError, match="unknown model architecture: 'newmodel9': pip install -U xllamacpp"):
        load_again(lambda: xllamacpp.Server(params), ValueError("first"))


def test_a_second_load_that_succeeds_counts() -> None:
    assert load_again(lambda: 7, ValueError("first")) == 7
