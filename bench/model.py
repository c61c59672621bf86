"""The model both sides serve: a real tokenizer, a chat template and a config, made on this machine.

Nothing is downloaded: a byte-level BPE of 32,000 tokens (the shape of Llama 3 and Qwen) is trained on the text of
Python's own standard library. Both sides read the same files, and the mock engines need no weights.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 32_000
CONTEXT = 40_960
# Raise it when the recipe changes, so that old copies are not used.
RECIPE = 3
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def cache_root() -> Path:
    """Where the benchmark keeps what it makes: outside the repository, used again by the next run."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "dynamo-pipelines"


def model_folder() -> Path:
    """The checkout of the benchmark's model; made on the first call."""
    folder = cache_root() / f"bench-model-{RECIPE}"
    if not (folder / "words.json").exists():
        _make(folder)
    return folder


def words(folder: Path) -> list[str]:
    """The words prompts are made of: each is one token when a space stands before it."""
    found: list[str] = json.loads((folder / "words.json").read_text())
    return found


def _corpus() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts and path.stat().st_size < 200_000:
            yield path.read_text(encoding="utf-8", errors="replace")


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


def _make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _train()
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "config.json", _config(tokenizer))
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _SPECIAL[0],
            "eos_token": _SPECIAL[4],
            "model_max_length": CONTEXT,
            "chat_template": _TEMPLATE,
        },
    )
    _write(folder / "generation_config.json", {"eos_token_id": tokenizer.token_to_id(_SPECIAL[4])})
    _write(folder / "words.json", _words(tokenizer))


def _config(tokenizer: Tokenizer) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": CONTEXT,
        "vocab_size": VOCABULARY,
        "bos_token_id": tokenizer.token_to_id(_SPECIAL[0]),
        "eos_token_id": tokenizer.token_to_id(_SPECIAL[4]),
        "rope_theta": 10_000.0,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
    }


def _words(tokenizer: Tokenizer) -> list[str]:
    plain = re.compile(r"Ġ[a-z]{3,10}")
    return sorted(token[1:] for token in tokenizer.get_vocab() if plain.fullmatch(token))


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))
