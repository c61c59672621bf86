"""Installing, a first model, and what is said about every line."""

from __future__ import annotations

from typing import Final

from docs.generate.compatibility.printed_row import ALL, ANOTHER_WAY, FEB, JAN, JUL, MAR, MAY, NOTHING_TO_DO, Row

_INSTALL: Final = "tests/pages/test_install.py"
_FIRST: Final = "tests/pages/test_first_model.py"
_EXTRAS: Final = f"{_INSTALL}::test_what_the_table_installs_is_there"

INSTALLING: Final = (
    Row("libraries", ALL, "system libraries, Rust, `cargo build`, with `--release`, `--target-dir`, `--manifest-path`",
        _EXTRAS, 'nothing is compiled: `pip install -e ".[cli]"`', NOTHING_TO_DO),
    Row("features", (FEB, MAR, MAY, JUL), "build features: `mistralrs`, `llamacpp`, `sglang`, `vllm`, `trtllm`, "
        "`python`, `cuda`, `metal`, `vulkan`, `openmp`",
        _EXTRAS, 'engines are extras: `pip install -e ".[llamacpp,mistralrs]"`; '
        "their wheels say what hardware they were built for", ANOTHER_WAY),
    Row("target", ALL, "`cd target/debug`, then `./dynamo-run`", f"{_INSTALL}::test_the_programs_names",
        "the program is on the PATH", NOTHING_TO_DO),
    Row("dynemo-run", (FEB,), "the name `dynemo-run`", f"{_INSTALL}::test_the_programs_names",
        "renamed in March 2025: type `dynamo-run`", ANOTHER_WAY),
    Row("dynamo run", (MAY,), "`dynamo run` in the place of `dynamo-run`", f"{_INSTALL}::test_dynamo_run",
        "the same program", "works"),
    Row("environment of vllm", (FEB, MAR, MAY, JUL), "an environment by `uv venv`, then `uv pip install vllm==...`",
        _EXTRAS, '`pip install -e ".[vllm]"` into any environment', ANOTHER_WAY),
    Row("environment of sglang", (FEB, MAR, MAY, JUL),
        "the same for `sglang[all]==0.4.2`, with `sgl-kernel` and flashinfer's index",
        _EXTRAS, '`pip install -e ".[sglang]"`', ANOTHER_WAY),
    Row("no module dynamo", (JUL,), "vLLM's process finds no module `dynamo`: build the bindings with maturin", _EXTRAS,
        'the engine runs in the worker\'s own environment: `pip install -e ".[vllm]"` holds both',
        NOTHING_TO_DO),
    Row("library path", (FEB, MAR, JUL), "`LD_LIBRARY_PATH` for llama.cpp's libraries and the C bindings",
        f"{_FIRST}::test_a_gguf_file_in_a_terminal", "wheels hold their libraries", NOTHING_TO_DO),
)  # fmt: skip

FIRST_MODEL: Final = (
    Row("help", ALL, "dynamo-run --help", f"{_FIRST}::test_help_names_what_the_usage_lines_name",
        "every form, flag and variable, with examples; exit code 0", "works"),
    Row("gguf", (FEB, MAR, MAY, JUL), "dynamo-run MODEL.gguf", f"{_FIRST}::test_a_gguf_file_in_a_terminal",
        "a chat, by llama.cpp"),
    Row("pipe", (JAN,), "echo PROMPT | dynamo-run MODEL.gguf", f"{_FIRST}::test_a_pipe",
        "the answer alone on standard output; the guide has a folder there, which works likewise"),
    Row("folder", ALL, "dynamo-run CHECKOUT", f"{_FIRST}::test_a_pipe", "by mistral.rs"),
    Row("hub", ALL[1:], "dynamo-run ORG/MODEL", f"{_FIRST}::test_models_of_the_hub",
        "loaded from the hub's cache or the hub (resumed where it broke off), then as a folder"),
    Row("hub, whole", ALL[2:], "dynamo-run in=text out=mistralrs ORG/MODEL", f"{_FIRST}::test_models_of_the_hub",
        "the same in full"),
    Row("token", ALL[1:], "`HF_TOKEN` for models that ask for consent", f"{_FIRST}::test_models_of_the_hub",
        "sent with every question; without it one sentence says that it is missing", "works"),
    Row("download", ALL, "a GGUF file fetched by `curl -L` or a browser", f"{_FIRST}::test_models_of_the_hub",
        "any file works; shorter: `dynamo-run ORG/MODEL/FILE.gguf` fetches it", ANOTHER_WAY),
    Row("http, flag", (FEB,), "dynamo-run in=http --model-path MODEL.gguf", f"{_FIRST}::test_a_server_of_a_file",
        "the OpenAI API on port 8080, by llama.cpp"),
    Row("http", (MAR,), "dynamo-run in=http MODEL.gguf", f"{_FIRST}::test_a_server_of_a_file", "the same"),
    Row("http, engine", (MAY, JUL), "dynamo-run in=http out=mistralrs MODEL.gguf",
        f"{_FIRST}::test_a_server_of_a_file", "the same, by mistral.rs"),
    Row("list", ALL, "`curl localhost:8080/v1/models`", f"{_FIRST}::test_a_server_of_a_file",
        "named after the file, or by `--model-name`", "works"),
    Row("chat of 2049", ALL, "`curl` with a chat of `max_tokens` (later `max_completion_tokens`) 2049",
        f"{_FIRST}::test_a_server_of_a_file", "400 where the context has no room for as many", "works"),
    Row("log level", ALL[2:], "`export DYN_LOG=debug`", f"{_FIRST}::test_more_log_lines",
        "levels, also per module: `DYN_LOG=info,dynamo.worker=debug`", "works"),
    Row("debug", (JUL, JAN), "dynamo-run in=http out=mistralrs -v", f"{_FIRST}::test_more_log_lines",
        "debug lines; without a model, as the page has it, the engine asks for one"),
    Row("trace", (JUL, JAN), "dynamo-run in=text out=llamacpp -vv", f"{_FIRST}::test_more_log_lines",
        "all lines; the same of the model"),
    Row("usage", (MAY, JUL), "the usage line: `in=[http|text|dyn://|batch:]`, `out=[...]` and twenty flags",
        f"{_FIRST}::test_help_names_what_the_usage_lines_name", "each is understood; see the tables of flags", "works"),
    Row("defaults", ALL[2:], "`in=` is text, `out=` is mistralrs, where they are left out",
        "tests/cli/run/test_grammar.py::test_who_asks_and_who_answers",
        "a `.gguf` file is llama.cpp's, where that is installed; without a model an echo answers, as in 2026", "works"),
)  # fmt: skip
