"""The guides' echo engines, each as a server."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.environments import quick_environment
from tests.pages.printed import Rows, chat, command, serving

pytestmark = pytest.mark.processes


def test_echo_core(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """The answer is what the folder's template made of the chat; past its end tokens where they are ignored."""
    folder = shutil.copytree(own["CHECKOUT"], tmp_path / "templated")
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}answer:"
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    line = command(rows["echo_core"], {**own, "CHECKOUT": str(folder)})
    rows.shows("ignore_eos")
    with serving(line, tmp_path / "log", quick_environment(tmp_path)) as client:
        assert chat(client, "templated", "a story") == "user:a story"
        assert chat(client, "templated", "a story", nvext={"ignore_eos": True}) == "user:a storyanswer:"


def test_echo_full(rows: Rows, own: dict[str, str], tmp_path: Path) -> None:
    """The prompt, under the default name and a chosen one, by each name of the engine; the pause is what is set."""
    env = quick_environment(tmp_path)
    del env["DYN_TOKEN_ECHO_DELAY_MS"]
    pauses = {"echo_full": 0.01, "echo_full, name": 0.01, "echo delay": 0.001, "echo": 0.01}
    for name, pause in pauses.items():
        row = rows[name]
        with serving(command(row, own), tmp_path / "log", env | row.variables) as client:
            model = "my_model" if "my_model" in row.what else next(iter(client.models.list())).id
            began = time.monotonic()
            assert chat(client, model, "x" * 50) == "x" * 50
            assert time.monotonic() - began >= 49 * pause, "it may be slower, never quicker"
