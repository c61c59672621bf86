"""The server of the large clients, and the tokenizer that it shares with those that count tokens themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.llm.conftest import train_byte_level
from tests_clients.conftest import serving

OFFLINE: Final[dict[str, Any]] = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""For clients that would ask the model hub, even about a folder."""
TEMPLATE: Final = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the model hub has it, with a small tokenizer and a chat template, and no weights."""
    folder = tmp_path_factory.mktemp("checkout")
    train_byte_level().save(str(folder / "tokenizer.json"))
    length = 131072  # Open WebUI describes all its tools in each chat: 24,000 tokens of this vocabulary
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        "chat_template": TEMPLATE,
        "model_max_length": length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": length}))
    return folder


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Iterator[dict[str, str]]:
    """Servers as those of the other clients are; what they serve has that tokenizer."""
    folder = tmp_path_factory.mktemp("servers")
    (folder / "embed.json").write_text('{"embedding_dim": 16}')
    parsers = ("--dyn-tool-call-parser", "hermes", "--dyn-reasoning-parser", "qwen3")
    embeds = ("--extra-engine-args", str(folder / "embed.json"))
    with (
        serving(folder, "demo", "out=mocker", str(checkout), *parsers) as server,
        serving(folder, "embed", "out=mocker", str(checkout), *embeds) as embedder,
    ):
        yield {"SERVER": server, "EMBEDDER": embedder}
