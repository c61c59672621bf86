"""Several processes: a frontend and its workers, their names, routing, migration."""

from __future__ import annotations

from typing import Final

from docs.generate.compatibility.printed_row import ANOTHER_WAY, FEB, JAN, JUL, MAR, MAY, NOTHING_TO_DO, Row

_FILE: Final = "tests/pages/test_distributed.py"
_GPU: Final = "tests/pages/test_gpu_engines.py::test_lines_reach_their_engine"
_POOL: Final = f"{_FILE}::test_a_pool"
_NAMES: Final = f"{_FILE}::test_names"
_KV: Final = f"{_FILE}::test_routing"
_STREAMS: Final = f"{_FILE}::test_streams"

DISTRIBUTED: Final = (
    Row("nats", (MAY, JUL, JAN), "`nats-server -js --trace --store_dir FOLDER`, and etcd", _POOL,
        "both are used as they are; JetStream isn't needed", "works"),
    Row("pool, frontend", (FEB, MAR, MAY), "dynamo-run in=http out=dyn://llama3B_pool", _POOL,
        "workers of that namespace; missing parts of the name are filled in as in 2025"),
    Row("pool, worker", (FEB, MAR), "dynamo-run in=dyn://llama3B_pool out=mistralrs CHECKOUT", _POOL,
        "found by its frontend, wherever it runs"),
    Row("pool, several", (FEB, MAR, MAY, JUL, JAN), "several workers of one name", _POOL,
        "asked in turn (at random in early 2025: `--router-mode random`)", "works"),
    Row("pool, vllm", (MAY,), "dynamo-run in=dyn://llama3B_pool out=vllm CHECKOUT", _GPU),
    Row("dyn", (JUL,), "dynamo-run in=http out=dyn", _NAMES, "every model that a worker serves"),
    Row("auto", (JAN,), "dynamo-run in=http out=auto", _STREAMS, "the same"),
    Row("worker, vllm", (JUL,), "dynamo-run in=dyn://llama3B.backend.generate out=vllm CHECKOUT", _GPU),
    Row("worker", (JAN,), "dynamo-run in=dyn://llama3B.backend.generate out=mistralrs CHECKOUT", _NAMES,
        "beside the others"),
)  # fmt: skip

NAMES: Final = (
    Row("short name", (JUL, JAN), "`in=dyn://test`", _NAMES, "is `NS.test.E`, as there", "works"),
    Row("two instances", (JUL,),
        "dynamo-run in=dyn://qwen3-32b.backend.generate out=sglang CHECKOUT --tensor-parallel-size 2 --base-gpu-id 2",
        _GPU, "two of them, with `--base-gpu-id` 0 and 2, are one model with two instances"),
    Row("two instances, spread", (JUL, JAN), "example 1: two instances of one endpoint", _NAMES,
        "one model, requests in turn", "works"),
    Row("two models, vllm", (JUL,), "dynamo-run in=dyn://llama3-1-8b.backend.generate out=vllm CHECKOUT", _GPU),
    Row("two models", (JUL, JAN), "example 2: two models, two pipelines", _NAMES, "one frontend lists both", "works"),
    Row("load_metrics", (JUL, JAN), "example 3: `llama3-1-8b.backend.load_metrics` beside `generate`", _NAMES,
        "every worker of `dynamo-run in=dyn://` has it; no patch", "works"),
    Row("prefill and decode", (JUL, JAN), "example 4: `NS.prefill.generate` and `NS.decode.generate`",
        "tests/system/routing/test_prefill_decode.py::test_prompts_are_computed_in_one_pool_and_decoded_in_the_other",
        "`dynamo-worker --role prefill` and `--role decode`, or `python -m dynamo.mocker --disaggregation-mode`",
        ANOTHER_WAY),
)  # fmt: skip

ROUTING: Final = (
    Row("kv, patch", (JUL,), "a patched vLLM 0.8.4 or `ai-dynamo-vllm`, `patch -p1`, the C bindings, `LD_LIBRARY_PATH`",
        "tests/pages/test_install.py::test_what_the_table_installs_is_there",
        'vLLM says itself what it caches: `pip install -e ".[vllm]"`', NOTHING_TO_DO),
    Row("kv, worker", (JUL,), "dynamo-run in=dyn://dynamo.endpoint.generate out=vllm CHECKOUT", _GPU),
    Row("kv, frontend", (JUL, JAN), "dynamo-run in=http out=dyn --router-mode kv", _KV,
        "a prompt goes where its beginning is cached"),
    Row("round robin", (JUL, JAN), "dynamo-run in=http out=dyn --router-mode round-robin", _NAMES,
        "each instance in turn; the default"),
    Row("random", (JUL, JAN), "dynamo-run in=http out=dyn --router-mode random",
        "tests/cli/run/test_main.py::test_a_frontend_is_told_what_the_line_says", "any of them"),
    Row("kv, arguments", (JUL, JAN),
        "dynamo-run in=http out=dyn --router-mode kv --kv-overlap-score-weight=1.0 --router-temperature=0.0 "
        "--use-kv-events=true", _KV, "0 of the weight leaves load alone; false predicts from what was sent"),
    Row("migration", (JUL, JAN), "dynamo-run in=dyn://NAME out=ENGINE --migration-limit=3",
        _STREAMS, "a stream whose worker is killed goes on elsewhere, without a word missing",
        "works"),
    Row("cancellation", (JAN,), "a client that hangs up ends the work of its request", _STREAMS,
        "at the worker, within a step", "works"),
)  # fmt: skip
