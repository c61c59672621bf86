"""lm-eval measures a model by two of its ways to ask a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from tests_clients.conftest import Clients

CHOICES: Final = """
task: made_up_choices
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
WORDS: Final = """
task: made_up_words
dataset_path: json
dataset_kwargs: {data_files: {test: QUESTIONS}}
output_type: generate_until
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["."], max_gen_toks: 20}
metric_list: [{metric: exact_match}]
"""
QUESTIONS: Final = [
    {"question": f"Is {number} even?", "choices": [" yes", " no"], "answer": number % 2} for number in range(8)
]
OFFLINE: Final[dict[str, Any]] = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.fixture
def tasks(clients: Clients) -> Path:
    """Two tasks over questions that are made up."""
    folder = clients.folder / "tasks"
    folder.mkdir()
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for name, text in (("choices", CHOICES), ("words", WORDS)):
        (folder / f"{name}.yaml").write_text(text.replace("QUESTIONS", str(questions)))
    return folder


def evaluated(clients: Clients, tasks: Path, model: str, path: str, task: str, *words: str) -> dict[str, float]:
    """Run `lm_eval` against a route of the server; the figures of the task."""
    where = clients.folder / "results"
    arguments = f"model=demo,base_url={clients.env['SERVER']}{path},num_concurrent=2,max_retries=1"
    clients.run(
        "lmeval", "lm_eval", "--model", model, "--model_args", f"{arguments},tokenizer_backend={words[0]}", *words[1:],
        "--tasks", task, "--include_path", str(tasks), "--output_path", str(where), **OFFLINE,
    )  # fmt: skip
    (results,) = where.rglob("results_*.json")
    figures: dict[str, float] = json.loads(results.read_text())["results"][task]
    return figures


def test_lm_eval_scores_choices(clients: Clients, tasks: Path) -> None:
    """`local-completions` scores prompts by `echo` and `logprobs`, with the server's own tokenizer."""
    figures = evaluated(clients, tasks, "local-completions", "/v1/completions", "made_up_choices", "remote")
    assert 0 <= figures["acc,none"] <= 1


def test_lm_eval_chats(clients: Clients, tasks: Path) -> None:
    """`local-chat-completions` sends messages, and compares the answers."""
    words = ("none", "--apply_chat_template")
    figures = evaluated(clients, tasks, "local-chat-completions", "/v1/chat/completions", "made_up_words", *words)
    assert figures["exact_match,none"] == 0  # the mocker says of no number whether it is even
