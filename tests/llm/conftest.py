"""Small real tokenizers, trained here: byte-level BPE as most models have, and one with byte fallback."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

if TYPE_CHECKING:
    from pathlib import Path

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 2026, and we'll see 12345 tokens!",
    "def main():\n    return {'a': [1, 2, 3]}\n\n\nclass A:\n\tpass\n",
    "naïve café, 你好，世界。こんにちは 한국어 👩‍👩‍👧 🏳️‍🌈 Ünïcödé",
] * 5
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>"]


def train_byte_level() -> Tokenizer:
    """Return a byte-level BPE with the chat markers of Qwen and a BOS that is put before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 3)]
    )
    return tokenizer


def fallback_data(strip: bool) -> dict[str, Any]:
    """Return a tokenizer file as SentencePiece models have: merges over "▁" text, bytes for the rest."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.train_from_iterator(
        [text.replace(" ", "▁") for text in CORPUS[:2]],
        trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<bos>", "<eos>"], show_progress=False),
    )
    data: dict[str, Any] = json.loads(trained.to_str())
    vocab = data["model"]["vocab"]
    for value in range(256):
        vocab[f"<0x{value:02X}>"] = len(vocab)
    data["model"].update(byte_fallback=True, fuse_unk=True)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    steps: list[dict[str, Any]] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if strip:
        data["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    else:
        data["normalizer"] = replace
    data["decoder"] = {"type": "Sequence", "decoders": steps}
    return data


@pytest.fixture(scope="session")
def byte_level_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level `tokenizer.json`."""
    path = tmp_path_factory.mktemp("byte-level") / "tokenizer.json"
    train_byte_level().save(str(path))
    return path


@pytest.fixture(scope="session", params=[False, True], ids=["gemma-like", "llama-like"])
def fallback_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `tokenizer.json` with byte fallback, without and with the leading space."""
    path = tmp_path_factory.mktemp("fallback") / "tokenizer.json"
    path.write_text(json.dumps(fallback_data(request.param)))
    return path


@pytest.fixture
def checkout(tmp_path: Path, byte_level_file: Path) -> Path:
    """A model folder in Hugging Face's layout."""
    folder = tmp_path / "tiny-chat"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(byte_level_file.read_bytes())
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings_file = {
        "bos_token": {"content": "<s>"},
        "eos_token": "<|im_end|>",
        "model_max_length": 1e30,
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings_file))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 64, "eos_token_id": 2}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    return folder
