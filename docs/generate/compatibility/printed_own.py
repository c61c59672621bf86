"""Batches, engines of your own, and looking into a running process."""

from __future__ import annotations

from typing import Final

from docs.generate.compatibility.printed_row import ANOTHER_WAY, JAN, JUL, MAR, MAY, Row

_BATCH: Final = "tests/pages/test_batch.py::test_a_file_of_prompts"
_AGES: Final = "tests/ages/llm/test_programs.py"
_OWN: Final = "tests/pages/test_own_engine.py"

BATCH: Final = (
    Row("batch", (MAY, JUL, JAN), "dynamo-run in=batch:PROMPTS.jsonl out=llamacpp MODEL.gguf", _BATCH,
        "bounded, resumed after a crash, bad lines are told"),
    Row("batch, input", (MAY, JUL, JAN), 'lines of `{"text": PROMPT}`', _BATCH, "also OpenAI's batch lines", "works"),
    Row("batch, output", (MAY, JUL, JAN),
        "`output.jsonl` beside it: `text`, `response`, `tokens_in`, `tokens_out`, `elapsed_ms`; totals at the end",
        _BATCH, "with `finish_reason`; `--batch-ordered` keeps the order", "works"),
)  # fmt: skip

OWN_ENGINE: Final = (
    Row("pystr", (MAR,), "dynamo-run out=pystr:ENGINE.py", f"{_OWN}::test_text_in_text_out",
        "`async def generate(request)` gets a chat and yields its chunks"),
    Row("pystr, http", (MAR,), "dynamo-run in=http out=pystr:ENGINE.py --model-name NAME",
        f"{_OWN}::test_text_over_http", "the same, served under that name"),
    Row("pytok", (MAR,), "dynamo-run out=pytok:ENGINE.py --model-path CHECKOUT",
        f"{_OWN}::test_tokens_in_tokens_out", "the same with token ids; the fields of both dicts are those of 2025"),
)  # fmt: skip

PROGRAMS: Final = (
    Row("program", (MAY, JUL, JAN), "a program: `@dynamo_worker(static=False)`, `runtime.namespace().component()`, "
        "`create_service()`, `serve_endpoint(handler)`, `uvloop.install()`, `asyncio.run(worker())`",
        f"{_OWN}::test_a_program_serves_an_endpoint", "as it is written there", "works"),
    Row("register_llm", (MAY, JUL), "its `register_llm(ModelType.Backend, endpoint, model_path)`: token ids in, token "
        "ids and a `finish_reason` out", f"{_AGES}::test_a_backend_of_mid_2025",
        "template and tokenizer are the frontend's", "works"),
    Row("register_llm, text", (MAY, JUL), "`ModelType.Chat` and `ModelType.Completion`: OpenAI's requests in, its "
        "answers out", f"{_AGES}::test_text_models_of_mid_2025", "one name may have both", "works"),
    Row("register_llm, more", (JUL, JAN), "`model_name`, `context_length`, `kv_cache_block_size`, `user_data`",
        f"{_AGES}::test_an_async_engine_of_late_2025", "names and defaults as there", "works"),
    Row("register_llm, input", (JAN,), "`ModelInput` beside `ModelType`", f"{_AGES}::test_a_text_engine_of_2026",
        "also as `register_model` of 1.x", "works"),
    Row("register_llm, path", (MAY, JUL, JAN), "`model_path`: ORG/MODEL, with `hf://` or without, a folder, a GGUF "
        "file", "tests/llm/models/test_sources.py::test_file_urls_and_hub_names", "as for `dynamo-run`", "works"),
    Row("examples", (MAY, JUL, JAN), "example engines in its repository",
        "tests/cli/run/test_run_python.py::test_the_examples_answer_a_pipe",
        "`examples/engines/` has ours", ANOTHER_WAY),
)  # fmt: skip

DEBUGGING: Final = (
    Row("console", (JUL, JAN), "the build feature `tokio-console`, on all interfaces",
        "tests/cli/run/test_habits_processes.py::test_the_console_shows_a_server",
        "`DYN_CONSOLE=1`, then `dynamo tasks`: which task waits for what; only for this user", ANOTHER_WAY),
)  # fmt: skip
