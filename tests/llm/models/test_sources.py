"""Where models come from: folders, files, packages, nothing; and what a wrong path says."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from dynamo.llm import FileCache, ModelCard, Preprocessor, card_from_dict, open_model
from dynamo.llm.models.checkout import context_length, eos_ids
from dynamo.runtime.errors import InvalidArgument


@pytest.fixture
def cache(tmp_path: Path) -> FileCache:
    """A cache of its own."""
    return FileCache(tmp_path / "cache")


def test_no_source_is_the_built_in_model() -> None:
    """Nothing is read or written for a first try."""
    model = open_model(None, name="first")
    assert (model.card.name, model.card.tokenizer, model.files, model.path) == ("first", "bytes", {}, None)
    assert Preprocessor.load(model.card, model.files).tokenizer.encode("é") == [0xC3, 0xA9]


def test_a_checkout_is_described(checkout: Path, cache: FileCache) -> None:
    """Context, end tokens of every file, special tokens, files by digest, no cache needed."""
    model = open_model(checkout, cache=cache)
    card = model.card
    assert (card.name, card.context_length, card.eos_token_ids, card.bos_token_id) == ("tiny-chat", 64, [2, 1], 3)
    assert card.special_tokens == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    assert set(card.files) == {"tokenizer", "tokenizer_config", "config", "generation_config"}
    assert {ref.digest for ref in card.files.values()} == set(model.files)
    assert model.path == checkout
    assert not cache.root.exists()


def test_a_card_survives_its_journey(checkout: Path) -> None:
    """To plain data and back, with the same digest."""
    card = open_model(checkout, user_data={"x": 1}).card
    again = card_from_dict(json.loads(json.dumps(card.to_dict())))
    assert again == card
    assert again.digest == card.digest


def test_the_digest_names_what_makes_tokens(checkout: Path) -> None:
    """Figures and user data don't count; template, context and tokens do."""
    card = open_model(checkout).card
    same = open_model(checkout, user_data={"x": 1}, migration_limit=3, role="decode").card
    assert same.digest == card.digest
    (checkout / "chat_template.jinja").write_text("{{ messages }}")
    others = [
        open_model(checkout).card,
        open_model(checkout, context_length=32).card,
        open_model(checkout, eos_token_ids=[1]).card,
        open_model(checkout, name="other").card,
    ]
    assert len({card.digest, *(other.digest for other in others)}) == 5


def test_what_a_model_does_tells_cards_apart(checkout: Path) -> None:
    """Workers that make vectors take no requests of those that make text; the usual types, said, change nothing."""
    card, vectors = open_model(checkout).card, open_model(checkout, model_types=["embedding"]).card
    assert vectors.digest != card.digest
    assert vectors.same_tokens(card)
    assert not vectors.takes_over(card)
    assert open_model(checkout, model_types=["completions", "chat"]).card.digest == card.digest


@pytest.mark.parametrize("data", [None, 5, {}, {"name": 5}, {"name": "x", "files": {"t": {"digest": 1}}}])
def test_a_garbage_card_is_refused(data: Any) -> None:
    """What a worker registered may be anything."""
    with pytest.raises(InvalidArgument, match="card"):
        card_from_dict(data)


def test_template_files_and_overrides(checkout: Path, tmp_path: Path) -> None:
    """A file beside the model wins over its configuration, a file given at start over both."""
    chat = {"messages": [{"role": "user", "content": "x"}]}

    def prompt(**how: Any) -> str:
        model = open_model(checkout, **how)
        return Preprocessor.load(model.card, model.files).chat_prompt(chat)

    assert prompt() == "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    (checkout / "chat_template.jinja").write_text("beside")
    assert prompt() == "beside"
    own = tmp_path / "own.jinja"
    own.write_text("own")
    assert prompt(chat_template=own) == "own"
    own.write_text("{% if %}")
    with pytest.raises(InvalidArgument, match="line 1"):
        prompt(chat_template=own)
    with pytest.raises(InvalidArgument, match="can't be read"):
        prompt(chat_template=tmp_path / "none.jinja")


def test_named_templates_of_the_configuration(checkout: Path) -> None:
    """A list of templates has a default and one for tools."""
    path = checkout / "tokenizer_config.json"
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    path.write_text(json.dumps({"chat_template": templates}))
    model = open_model(checkout)
    preprocessor = Preprocessor.load(model.card, model.files)
    messages = [{"role": "user", "content": "x"}]
    assert preprocessor.chat_prompt({"messages": messages}) == "plain"
    assert preprocessor.chat_prompt({"messages": messages, "tools": [{}]}) == "tools"


def test_templates_from_every_place(checkout: Path, cache: FileCache) -> None:
    """The configuration, `chat_template.json`, Jinja files beside the model, what is given: the later one wins."""
    messages = [{"role": "user", "content": "x"}]

    def prompts(template: str | None = None) -> tuple[str, str]:
        model = open_model(checkout, cache=cache, chat_template=template)
        ready = Preprocessor.load(model.card, model.files)
        return ready.chat_prompt({"messages": messages}), ready.chat_prompt({"messages": messages, "tools": [{}]})

    configuration = checkout / "tokenizer_config.json"
    configuration.write_text(json.dumps({"chat_template": [{"name": "tool_use", "template": "tools"}]}))
    assert prompts() == ("User: x\nAssistant:", "tools")
    (checkout / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert prompts() == ("json", "tools")
    (checkout / "additional_chat_templates").mkdir()
    (checkout / "additional_chat_templates" / "tool_use.jinja").write_text("tools beside")
    assert prompts() == ("json", "tools beside")
    (checkout / "chat_template.jinja").write_text("beside")
    assert prompts() == ("beside", "tools beside")
    assert prompts("{{ messages[0].content }}!{# of tools, nothing #}") == ("x!", "x!")
    with pytest.raises(InvalidArgument, match="line 1"):
        prompts("{% if %}")


def test_the_context_can_only_be_lowered(checkout: Path) -> None:
    """A model that runs has no more positions than it was made for; one that only pretends has as many as asked."""
    assert open_model(checkout, context_length=32).card.context_length == 32
    with pytest.raises(InvalidArgument, match="a context length of 65 is more than the 64 tokens"):
        open_model(checkout, context_length=65)
    assert open_model(checkout, context_length=65, weights="none").card.context_length == 65
    assert open_model(None, context_length=1 << 20).card.context_length == 1 << 20


def test_a_checkout_whose_weights_are_not_all_there(checkout: Path) -> None:
    """A part that is missing, and a pointer that git-lfs left: both with what to do; no matter to those without."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (checkout / "model.safetensors.index.json").write_text(json.dumps(index))
    (checkout / "model-00001-of-00002.safetensors").write_bytes(b"x")
    with pytest.raises(InvalidArgument, match=r"1 of 2 parts .* missing \(model-00002-of-00002.safetensors\)"):
        open_model(checkout)
    assert open_model(checkout, weights="none").path == checkout
    (checkout / "model-00002-of-00002.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x")
    with pytest.raises(InvalidArgument, match="run `git lfs pull`"):
        open_model(checkout)
    (checkout / "tokenizer.json").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x")
    with pytest.raises(InvalidArgument, match=r"tokenizer in .* is a pointer of git-lfs"):
        open_model(checkout, weights="none")


@pytest.mark.parametrize(
    ("config", "settings", "length"),
    [
        ({"max_position_embeddings": 10}, {"model_max_length": 5}, 10),
        ({"text_config": {"max_position_embeddings": 20}}, {}, 20),
        ({}, {"model_max_length": 30}, 30),
        ({}, {"model_max_length": 1e30}, None),
        ({"max_position_embeddings": "many"}, {}, None),
    ],
)
def test_the_context_comes_from_the_first_that_knows(config: Any, settings: Any, length: int | None) -> None:
    """The configuration, its text part, the tokenizer's."""
    assert context_length(config, settings) == length


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ids"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": [3, 2]}, 3, [3, 2]),
        ({"eos_token_id": 1}, {}, 2, [1, 2]),
        ({"text_config": {"eos_token_id": 4}}, {}, None, [4]),
        ({}, {}, None, []),
    ],
)
def test_end_tokens_come_from_every_file(config: Any, generation: Any, tokenizer: int | None, ids: list[int]) -> None:
    """Generation's before the configuration's, and always the tokenizer's."""
    assert eos_ids(config, generation, tokenizer) == ids


def test_a_wrong_path_says_what_was_looked_for(checkout: Path) -> None:
    """The path, and the neighbour that was probably meant."""
    wrong = checkout.parent / "tiny-chta"
    with pytest.raises(InvalidArgument, match=r"no model at .*tiny-chta.*did you mean .*tiny-chat'\?"):
        open_model(wrong)
    with pytest.raises(InvalidArgument, match="does not exist either"):
        open_model(checkout / "no" / "where")
    with pytest.raises(InvalidArgument, match="no model at"):
        open_model("\0")
    with pytest.raises(InvalidArgument):
        open_model("x" * 5000)


def test_file_urls_and_hub_names(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`file://` is a path; a hub name is one where such a folder exists, else `hub.py` loads it."""
    assert open_model(f"file://{checkout}").path == checkout
    monkeypatch.chdir(checkout.parent.parent)
    assert open_model(f"hf://{checkout.parent.name}/tiny-chat").card.name == "tiny-chat"
    with pytest.raises(InvalidArgument, match="no model of the hub: use hf://org/repo"):
        open_model("hf://name")
    assert open_model(f"{checkout.parent.name}/tiny-chat").path == Path(checkout.parent.name) / "tiny-chat"
    with pytest.raises(InvalidArgument, match=r"no model at .*tiny-chta.*did you mean .*tiny-chat'"):
        open_model(f"{checkout.parent.name}/tiny-chta")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "it is empty"),
        (["readme.md"], r"no tokenizer\.json, .* in it \(it has readme\.md\)"),
        (["model.gguf"], r"give the path of its file 'model\.gguf'"),
        (["tokenizer.model"], "SentencePiece model has no pieces"),
    ],
)
def test_a_folder_without_tokenizer_says_what_it_has(tmp_path: Path, names: list[str], sentence: str) -> None:
    """The next step depends on what is there."""
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InvalidArgument, match=sentence):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "tokenizer_config.json"])
def test_a_broken_file_of_a_checkout_is_named(checkout: Path, name: str) -> None:
    """A download that broke off leaves half a file."""
    path = checkout / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InvalidArgument, match=rf"{name}.*cut off"):
        open_model(checkout)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_file_nested_beyond_reading_is_named(checkout: Path, name: str) -> None:
    """Whoever made such a model gets no further than others."""
    (checkout / name).write_text('{"model": {}, "normalizer": ' + "[" * 100_000)
    with pytest.raises(InvalidArgument, match=rf"{name}.*nested too deeply"):
        open_model(checkout)


def test_an_unknown_card_field_is_a_programming_error() -> None:
    """Misspelt overrides are not dropped."""
    with pytest.raises(TypeError, match="contextlength"):
        open_model(None, contextlength=5)


def fake_package(monkeypatch: pytest.MonkeyPatch, content: bytes, promised: bytes) -> None:
    """Install a model package that assembles `content` and promises `promised`."""
    module: Any = types.ModuleType("tiny_model_gguf")
    module.MODEL_NAME = "tiny.gguf"
    module.EXPECTED_SHA256 = hashlib.sha256(promised).hexdigest()

    def assemble(path: Path) -> None:
        path.write_bytes(content)
        if content != promised:
            raise ValueError("checksum")

    module.assemble = assemble
    monkeypatch.setitem(sys.modules, "tiny_model_gguf", module)


def test_a_package_is_assembled_into_the_cache(cache: FileCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, complete, under the cache folder; a damaged package leaves nothing."""
    from dynamo.llm.models.python_package import assemble

    fake_package(monkeypatch, b"broken", b"model")
    with pytest.raises(InvalidArgument, match="pip install --force-reinstall tiny-model-gguf"):
        assemble("tiny-model-gguf", cache)
    assert [path for path in cache.root.rglob("*") if path.is_file()] == []
    fake_package(monkeypatch, b"model", b"model")
    path = assemble("tiny-model-gguf", cache)
    assert path.read_bytes() == b"model"
    assert path.is_relative_to(cache.root)
    sys.modules["tiny_model_gguf"].assemble = None  # type: ignore[attr-defined] # the fake has it
    assert assemble("tiny-model-gguf", cache) == path


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("no-such-model-gguf", "pip install no-such-model-gguf"),
        ("json", "holds no model"),
        ("../x", "does not name a package"),
        ("", "does not name a package"),
    ],
)
def test_packages_that_are_none(cache: FileCache, name: str, sentence: str) -> None:
    """A missing package comes with the command that installs it."""
    with pytest.raises(InvalidArgument, match=sentence):
        open_model(f"package://{name}", cache=cache)


def test_a_minimal_card_needs_only_a_name() -> None:
    """Defaults are those of a text-and-chat model."""
    card = card_from_dict({"name": "x"})
    assert card == ModelCard(name="x")
    assert card.model_types == ["chat", "completions"]
