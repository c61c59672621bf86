"""Each engine's own lines, its arguments, and engines over several nodes."""

from __future__ import annotations

from typing import Final

from docs.generate.compatibility.printed_row import ANOTHER_WAY, FEB, JAN, JUL, MAR, MAY, Row

_GPU: Final = "tests/pages/test_gpu_engines.py::test_lines_reach_their_engine"
_REFUSED: Final = "tests/pages/test_gpu_engines.py::test_what_is_refused_says_what_to_do"
_GGUF: Final = "tests/pages/test_first_model.py::test_llama_cpp"
_NODES: Final = "tests/pages/test_nodes.py"
_APART: Final = f"{_NODES}::test_two_nodes_ask_for_their_engine"
_INSTALL: Final = "tests/pages/test_install.py::test_what_the_table_installs_is_there"

LLAMA_CPP: Final = (
    Row("llama_cpp", (FEB, MAR), "dynamo-run out=llama_cpp --model-path MODEL.gguf --model-config CHECKOUT", _GGUF),
    Row("llamacpp", (MAY, JUL), "dynamo-run out=llamacpp MODEL.gguf", _GGUF, "by llama.cpp"),
    Row("llamacpp, config", (MAY,), "dynamo-run out=llamacpp MODEL.gguf --model-config CHECKOUT", _GGUF),
    Row("llamacpp, context", (JUL,),
        "dynamo-run out=llamacpp MODEL.gguf --context-length 256 --model-config CHECKOUT", _GGUF),
)  # fmt: skip

SGLANG: Final = (
    Row("sglang, http", (MAY, JUL),
        "dynamo-run in=http out=sglang --model-path CHECKOUT --tensor-parallel-size 8", _GPU),
    Row("sglang, text", (MAY, JUL), "dynamo-run out=sglang CHECKOUT --tensor-parallel-size 8", _GPU),
    Row("sglang, gpus", (MAY, JUL), "dynamo-run out=sglang CHECKOUT --tensor-parallel-size 4 --base-gpu-id 4", _GPU),
    Row("sglang, arguments", (MAY, JUL), "dynamo-run out=sglang CHECKOUT --extra-engine-args ARGS.json", _GPU,
        'as `{"dtype": "half", "trust_remote_code": true}`: any argument of SGLang\'s command line'),
    Row("sglang, leader of 0.1", (FEB, MAR),
        "dynamo-run in=http out=sglang --model-path CHECKOUT --tensor-parallel-size 8 --num-nodes 2 --node-rank 0 "
        "--dist-init-addr HOST:PORT", _APART),
    Row("sglang, follower of 0.1", (FEB, MAR),
        "dynamo-run in=none out=sglang --model-path CHECKOUT --tensor-parallel-size 8 --num-nodes 2 --node-rank 1 "
        "--dist-init-addr HOST:PORT", _APART),
    Row("sglang, leader", (MAY, JUL),
        "dynamo-run out=sglang CHECKOUT --tensor-parallel-size 16 --node-rank 0 --num-nodes 2 --leader-addr HOST:PORT",
        _APART),
    Row("sglang, follower", (MAY, JUL),
        "`python3 -m sglang.launch_server --tp 16 --dist-init-addr HOST:PORT --nnodes 2 --node-rank 1 "
        "--trust-remote-code`", f"{_NODES}::test_a_follower_runs_what_launch_server_would",
        "`dynamo-run in=none out=sglang ...` as above runs the same with the same words, and says when it can't; "
        "a server started by hand is not waited for", ANOTHER_WAY),
    Row("two nodes", (FEB, MAR, MAY, JUL), "an engine over two nodes, with the frontend at its leader",
        f"{_NODES}::test_two_nodes_answer", "what the lines above come to, with the mocker as the engine: both nodes "
        "find each other in etcd", "works"),
)  # fmt: skip

VLLM: Final = (
    Row("vllm, hub", (MAY, JUL), "dynamo-run out=vllm ORG/MODEL", _GPU),
    Row("vllm, flag", (FEB, MAR), "dynamo-run in=http out=vllm --model-path CHECKOUT", _GPU),
    Row("vllm", (MAY, JUL), "dynamo-run in=http out=vllm CHECKOUT", _GPU),
    Row("vllm, context", (JUL,), "dynamo-run in=http out=vllm CHECKOUT --context-length 256", _GPU),
    Row("vllm, gguf", (FEB, MAR),
        "dynamo-run in=http out=vllm --model-path MODEL.gguf --model-config CHECKOUT", _REFUSED,
        "vLLM itself dropped them"),
    Row("vllm, leader", (MAR,),
        "dynamo-run in=text out=vllm CHECKOUT --tensor-parallel-size 8 --num-nodes 2 --leader-addr HOST:PORT "
        "--node-rank 0", _APART),
    Row("vllm, follower", (MAR,),
        "dynamo-run in=none out=vllm CHECKOUT --num-nodes 2 --leader-addr HOST:PORT --node-rank 1", _APART),
    Row("vllm, ray", (MAY, JUL), "dynamo-run out=vllm CHECKOUT --tensor-parallel-size 16", _GPU,
        "between `ray start` and `ray stop`, which are Ray's own and stay as they are"),
    Row("visible gpus", (MAY, JUL), "`CUDA_VISIBLE_DEVICES`",
        "tests/pages/test_own_engine.py::test_text_in_text_out", "engines have the environment of their process",
        "works"),
)  # fmt: skip

TRTLLM: Final = (
    Row("trtllm, built", (FEB, MAR), "dynamo-run in=text out=trtllm --model-path ENGINE --model-config CHECKOUT",
        "tests/pages/test_gpu_engines.py::test_a_built_engine_is_refused",
        "an engine made by `trtllm-build`: name the checkout itself, which its PyTorch backend loads", "refused"),
    Row("trtllm, convert", (FEB, MAR), "`docker run`, `convert_checkpoint.py`, `trtllm-build`", _INSTALL,
        'checkouts are loaded as they are: `pip install -e ".[trtllm]"`', ANOTHER_WAY),
    Row("trtllm, file", (MAY,), "dynamo-run out=pystr:ENGINE.py -- --engine_args ARGS.yaml",
        "tests/pages/test_own_engine.py::test_text_in_text_out", "the file gets the words behind `--`"),
    Row("trtllm", (JUL,), "dynamo-run in=http out=trtllm ORG/MODEL", _GPU),
    Row("trtllm, arguments", (JUL,), "dynamo-run in=http out=trtllm ORG/MODEL --extra-engine-args ARGS.yaml", _GPU,
        "nested, as `kv_cache_config: {event_buffer_max_size: 1024}`"),
)  # fmt: skip

_MOCKER: Final = "tests/pages/test_distributed.py::test_routing"
_ECHO: Final = "tests/pages/test_echo.py"
SIMULATED: Final = (
    Row("echo_core", (MAR, MAY, JUL), "dynamo-run in=http out=echo_core --model-path CHECKOUT",
        f"{_ECHO}::test_echo_core", "the answer is the rendered prompt"),
    Row("ignore_eos", (MAY, JUL), "`nvext.ignore_eos` in a request to it, which `in=text` sets by itself",
        f"{_ECHO}::test_echo_core", "end tokens of the template don't end the answer then", "works"),
    Row("echo_full", (MAR,), "dynamo-run in=http out=echo_full", f"{_ECHO}::test_echo_full", "the prompt comes back"),
    Row("echo_full, name", (MAY, JUL), "dynamo-run in=http out=echo_full --model-name my_model",
        f"{_ECHO}::test_echo_full", "the same"),
    Row("echo delay", (MAR, MAY, JUL), "DYN_TOKEN_ECHO_DELAY_MS=1 dynamo-run in=http out=echo_full",
        f"{_ECHO}::test_echo_full", "the pause between tokens; 10 ms else"),
    Row("echo", (JAN,), "dynamo-run in=http out=echo", f"{_ECHO}::test_echo_full", "the same engine"),
    Row("mocker, worker", (JUL, JAN),
        "dynamo-run in=dyn://dynamo.mocker.generate out=mocker --model-path CHECKOUT --extra-engine-args ARGS.json",
        _MOCKER, 'as `{"speedup_ratio": 10.0}`'),
    Row("mocker, arguments", (JUL, JAN),
        "`block_size`, `num_gpu_blocks`, `max_num_seqs`, `max_num_batched_tokens`, `enable_prefix_caching`, "
        "`enable_chunked_prefill`, `speedup_ratio`, `dp_size`, `watermark`", _MOCKER,
        "names and meaning as there; an unknown one is told with the nearest known", "works"),
)  # fmt: skip
