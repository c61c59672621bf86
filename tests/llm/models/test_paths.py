"""What somebody meant who named no model: a neighbour, or the hub's form of a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo.llm.models.paths import find_path, is_of_hub, looks_like_weights, nearest
from dynamo.runtime.errors import InvalidArgument


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("model.guf", "did you mean 'model.gguf'?"),
        ("./modle.gguf", "did you mean 'model.gguf'?"),
        ("llama3.2", "did you mean 'Llama-3.2-1B-Instruct-Q4_K_M.gguf'?"),
        ("qwen3:0.6b", "ORG/NAME:Q4_K_M for a GGUF file (https://huggingface.co/models?search=qwen3+0.6b)"),
        ("mistral", "the hub's models are called ORG/NAME"),
        ("other/llama3.2:1b", ""),
        ("zzz.gguf", "has Llama-3.2-1B-Instruct-Q4_K_M.gguf, model.gguf"),
        ("/nowhere/x.gguf", "the folder '/nowhere' does not exist either"),
    ],
)
def test_names_that_mislead(typed: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nearest file first, then the form of the hub, then what is there."""
    for name in ("model.gguf", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", "notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    if not says:
        assert is_of_hub(typed)
        return
    assert not is_of_hub(typed)
    with pytest.raises(InvalidArgument) as caught:
        find_path(typed)
    assert says in str(caught.value)


def test_a_folder_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and what could be named."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match=r"no \.gguf file lies in .*ORG/NAME of the hub"):
        find_path("model.gguf")


def test_the_nearest_name() -> None:
    """By its letters, or a file of weights that has all of them; the shorter of two."""
    assert nearest("gemma", ["notes-gemma.txt", "gemma-3-27b.gguf", "gemma-3-1b.gguf"]) == "gemma-3-1b.gguf"
    assert nearest("x", ["y.gguf"]) == ""
    assert [looks_like_weights(name) for name in ("a.guf", "a.gguf", "llama3.2", "a")] == [True, True, False, False]
