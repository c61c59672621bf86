"""The original's in= and out= forms, and the `dynamo-run` lines of its READMEs; the code says what becomes of them."""

from __future__ import annotations

from typing import Final

FORMS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("in=text", "A, B, C", "in=text out=echo", "a chat; earlier prompts come back with the arrow keys"),
    ("in=stdin", "A, B, C", "in=stdin out=echo", "one prompt from a pipe, the answer on standard output"),
    ("in=http", "A, B, C", "in=http out=echo", "the OpenAI API, on loopback; `--http-host 0.0.0.0` opens it"),
    ("in=grpc", "B, C", "in=grpc out=echo", "KServe over gRPC"),
    ("in=dyn://NAMESPACE.COMPONENT.ENDPOINT", "A, B, C", "in=dyn://a.b.c out=echo",
     "a worker; missing parts are NS, C and E, surplus ones join the endpoint's name; `load_metrics` is beside it"),
    ("in=batch:FILE", "A, B", "in=batch:p.jsonl out=echo",
     "beyond the original: bounded, resumed after a crash, bad lines are told, OpenAI's lines, order on request"),
    ("in=none", "A", "in=none out=vllm m --num-nodes 2 --node-rank 1 --leader-addr h:1",
     "a follower of an engine over several nodes; the flags say which, as on its leader"),
    ("in= left out", "A, B, C", "out=echo", "text on a terminal, else stdin"),
    ("out=echo_full", "A", "out=echo_full", "the last user message, character by character"),
    ("out=echo_core", "A", "out=echo_core", "the rendered prompt; needs no model here: there is a built-in one"),
    ("out=echo", "B", "out=echo", "the same as echo_full"),
    ("out=mistralrs", "A, B", "out=mistralrs m", "mistral.rs"),
    ("out=llamacpp", "A", "out=llamacpp m.gguf", "llama.cpp, for GGUF files"),
    ("out=llama_cpp", "A", "out=llama_cpp m.gguf", "the same"),
    ("out=sglang", "A", "out=sglang m", "SGLang"),
    ("out=vllm", "A", "out=vllm m", "vLLM"),
    ("out=trtllm", "A", "out=trtllm m", "TensorRT-LLM"),
    ("out=pystr:FILE", "A", "out=pystr:e.py", "an engine of one's own, text in and out"),
    ("out=pytok:FILE", "A", "out=pytok:e.py m", "the same, tokens in and out"),
    ("out=dyn", "A", "in=http out=dyn", "workers found in etcd"),
    ("out=dyn://PATH", "A", "in=http out=dyn://a.b.c", "the workers of that namespace"),
    ("out=auto", "B", "in=http out=auto", "the same as dyn"),
    ("out=mocker", "A, B", "out=mocker", "a simulated engine; needs no model here"),
    ("out= left out, a .gguf file", "A, B", "m.gguf", "llama.cpp (mistral.rs there)"),
    ("out= left out, another model", "A, B", "Qwen/Qwen3-0.6B", "mistral.rs there"),
    ("out= left out, no model", "B", "in=http", "echoes"),
    ("-v, -vv", "A, B, C", "-vv out=echo", "debug and trace, anywhere in the line"),
    ("-- ARGUMENTS", "A", "out=pystr:e.py -- --x 1", "arguments of an engine of one's own"),
)  # fmt: skip
"""Form, ages, a line with it, what it does."""

LINES: Final = (
    "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "in=http --model-path Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "in=http Llama-3.2-1B-Instruct-Q4_K_M.gguf",
    "in=http out=dyn://llama3B_pool",
    "in=dyn://llama3B_pool out=mistralrs ~/llm_models/Llama-3.2-3B-Instruct",
    "in=dyn://llama3B_pool out=vllm ~/llms/Llama-3.2-3B-Instruct",
    "in=http out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 8 "
    "--num-nodes 2 --node-rank 0 --dist-init-addr 10.217.98.122:9876",
    "in=none out=sglang --model-path ~/llm_models/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 8 "
    "--num-nodes 2 --node-rank 1 --dist-init-addr 10.217.98.122:9876",
    "out=llama_cpp --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf --model-config "
    "~/llm_models/Llama-3.2-3B-Instruct/",
    "in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct/",
    "in=http out=vllm --model-path ~/llm_models/Llama-3.2-3B-Instruct-Q6_K.gguf --model-config "
    "~/llm_models/Llama-3.2-3B-Instruct/",
    "in=text out=trtllm --model-path /app/trtllm_engine/ --model-config ~/llm_models/Llama-3.2-3B-Instruct/",
    "Qwen/Qwen2.5-3B-Instruct",
    "in=text out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --tensor-parallel-size 8 --num-nodes 2 --leader-addr "
    "10.217.98.122:6539 --node-rank 0",
    "in=none out=vllm ~/llm_models/Llama-3.2-3B-Instruct/ --num-nodes 2 --leader-addr 10.217.98.122:6539 --node-rank 1",
    "out=pystr:my_python_engine.py",
    "out=pytok:my_python_engine.py --model-path hf-repo-checkout",
    "out=pystr:engines/trtllm_engine.py -- --engine_args engines/llm_api_config.yaml",
    "in=http out=mistralrs -v",
    "in=text out=llamacpp m.gguf -vv",
    "out=vllm Qwen/Qwen3-4B",
    "in=http out=mistralrs Llama-3.2-3B-Instruct-Q4_K_M.gguf",
    "in=http out=dyn",
    "in=http out=auto",
    "in=dyn://llama3B.backend.generate out=vllm ~/llms/Llama-3.2-3B-Instruct",
    "in=dyn://qwen3-32b.backend.generate out=sglang /data/Qwen3-32B --tensor-parallel-size 2 --base-gpu-id 2",
    "in=dyn://llama3-1-8b.backend.generate out=vllm /data/Llama-3.1-8B-Instruct/",
    "in=dyn://dynamo.endpoint.generate out=vllm /data/llms/Qwen/Qwen3-4B",
    "in=http out=dyn --router-mode kv --kv-overlap-score-weight=1.0 --router-temperature=0.0 --use-kv-events=true",
    "in=dyn://a.b.c out=mocker --migration-limit=3",
    "in=text out=mistralrs Qwen/Qwen3-4B",
    "out=llamacpp ~/llms/Llama-4-Scout-17B-16E-Instruct-UD-IQ1_S.gguf --context-length 32768 --model-config "
    "~/llms/Llama-4-Scout-17B-16E-Instruct",
    "out=sglang ~/llms/Llama-4-Scout-17B-16E-Instruct/ --tensor-parallel-size 4 --base-gpu-id 4",
    "out=sglang /data/models/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16 --node-rank 0 --num-nodes 2 "
    "--leader-addr 10.217.98.122:5000",
    "out=vllm ~/llms/DeepSeek-R1-Distill-Llama-70B/ --tensor-parallel-size 16",
    "in=http out=trtllm TinyLlama/TinyLlama-1.1B-Chat-v1.0 --extra-engine-args trtllm_extra.yaml",
    "in=http out=echo_core --model-path hf-repo-checkout",
    "in=http out=echo_full --model-name my_model",
    "in=http out=echo_full",
    "in=batch:prompts.jsonl out=llamacpp m.gguf",
    "in=dyn://dynamo.mocker.generate out=mocker --model-path TinyLlama/TinyLlama-1.1B-Chat-v1.0 --extra-engine-args "
    "mocker_args.json",
    "out=sglang ~/llms/Llama-3.2-3B-Instruct --extra-engine-args sglang_extra.json",
)
"""The lines that its five READMEs print, without the program's name."""
