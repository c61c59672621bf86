"""How people name a model of the hub, and which of its files are loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo.llm.hub.names import HubModel, Weights, choose, parse
from dynamo.llm.models.paths import is_of_hub
from dynamo.runtime.errors import InvalidArgument

TINY = HubModel("org/tiny")


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("hf://org/tiny", TINY),
        ("org/tiny", TINY),
        ("hf://org/tiny/", TINY),
        ("hf://org/tiny@v1.0", HubModel("org/tiny", "v1.0")),
        ("org/tiny@refs/pr/3", HubModel("org/tiny", "refs/pr/3")),
        ("org/tiny:Q4_K_M", HubModel("org/tiny", variant="Q4_K_M")),
        ("org/tiny:Q4_K_M@main", HubModel("org/tiny", "main", variant="Q4_K_M")),
        ("hf://org/tiny/a/b.gguf", HubModel("org/tiny", file="a/b.gguf")),
        ("org/tiny/b.gguf@v1", HubModel("org/tiny", "v1", "b.gguf")),
        ("org/tiny@v1/b.gguf", HubModel("org/tiny", "v1", "b.gguf")),
        ("https://huggingface.co/org/tiny", TINY),
        ("hf.co/org/tiny:Q4_K_M", HubModel("org/tiny", variant="Q4_K_M")),
        ("https://hf.co/org/tiny/tree/v1", HubModel("org/tiny", "v1")),
        ("https://huggingface.co/org/tiny/blob/main/b.gguf?download=true", HubModel("org/tiny", "main", "b.gguf")),
        ("tiny", None),
        ("org/tiny/model.safetensors", None),
        ("org/../tiny", None),
        ("../tiny", None),
        ("https://example.org/org/tiny", None),
        ("", None),
        ("org/tiny@", None),
    ],
)
def test_names(source: str, model: HubModel | None) -> None:
    """All the ways that are seen elsewhere; what is said of it can be given again."""
    assert parse(source) == model
    if model is not None:
        assert parse(str(model)) == model


@given(st.text(max_size=30))
def test_any_text_is_a_name_or_none(text: str) -> None:
    """Never an error."""
    parse(text)


def test_a_bare_name_is_a_path_where_such_a_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt path is no model of the hub, and neither is what only looks like one."""
    monkeypatch.chdir(tmp_path)
    assert is_of_hub("org/tiny")
    assert is_of_hub("org/tiny/x.gguf")
    (tmp_path / "org").mkdir()
    assert not is_of_hub("org/tiny")
    assert is_of_hub("hf://org/tiny")
    assert not is_of_hub("tiny.gguf")
    assert not is_of_hub("/org/tiny")
    assert not is_of_hub("package://org")
    assert not is_of_hub("x" * 5000 + "/y")


HF = ["config.json", "tokenizer.json", "model.safetensors.index.json", "modeling_x.py"]
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
COPIES = ["pytorch_model.bin", "consolidated.safetensors", "original/consolidated.00.pth", "onnx/model.onnx", "x.h5"]
NOISE = ["README.md", ".gitattributes", "assets/a.png", "LICENSE"]
GGUF = ["t-Q2_K.gguf", "t-Q4_K_M.gguf", "t-BF16-00001-of-00002.gguf", "t-BF16-00002-of-00002.gguf", "mmproj-F16.gguf"]


@pytest.mark.parametrize(
    ("names", "weights", "loaded", "opened"),
    [
        (HF + SHARDS + COPIES + NOISE + GGUF, "any", HF + SHARDS, None),
        (HF + SHARDS + COPIES + NOISE + GGUF, "none", HF, None),
        (HF + SHARDS + GGUF, "gguf", [*HF, "t-Q4_K_M.gguf"], "t-Q4_K_M.gguf"),
        (["config.json", "pytorch_model.bin"], "any", ["config.json", "pytorch_model.bin"], None),
        (["params.json", "consolidated.safetensors"], "any", ["params.json", "consolidated.safetensors"], None),
        ([*GGUF, *NOISE, "config.json"], "any", ["config.json", "t-Q4_K_M.gguf"], "t-Q4_K_M.gguf"),
        (GGUF, "none", ["t-Q4_K_M.gguf"], "t-Q4_K_M.gguf"),
        (["only-IQ3_XS.gguf"], "gguf", ["only-IQ3_XS.gguf"], "only-IQ3_XS.gguf"),
        (["qwen.tiktoken", "a.safetensors"], "none", ["qwen.tiktoken"], None),
    ],
)
def test_what_an_engine_needs(names: list[str], weights: Weights, loaded: list[str], opened: str | None) -> None:
    """Weights once, in the form that the engine reads, no pictures; nothing but the description for simulated ones."""
    choice = choose(TINY, names, weights)
    assert (choice.names, choice.gguf) == (loaded, opened)


@pytest.mark.parametrize(
    ("source", "opened"),
    [
        ("org/tiny:q2_k", "t-Q2_K.gguf"),
        ("org/tiny:BF16", "t-BF16-00001-of-00002.gguf"),
        ("org/tiny/t-BF16-00002-of-00002.gguf", "t-BF16-00001-of-00002.gguf"),
        ("org/tiny/mmproj-F16.gguf", "no such file"),
        ("org/tiny:Q9", "it has BF16, Q2_K, Q4_K_M"),
    ],
)
def test_a_named_quantisation(source: str, opened: str) -> None:
    """Any case, all parts of a split one, and a list where it isn't there."""
    model = parse(source)
    assert model is not None
    try:
        assert choose(model, HF + SHARDS + GGUF, "any").gguf == opened
    except InvalidArgument as error:
        assert opened in str(error)  # noqa: PT017 - either of the two columns


def test_an_engine_that_reads_only_gguf_and_finds_none() -> None:
    """It is said so before anything is loaded."""
    with pytest.raises(InvalidArgument, match="no GGUF file"):
        choose(TINY, HF + SHARDS, "gguf")
