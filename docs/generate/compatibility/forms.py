"""NVIDIA Dynamo's in= and out= forms; the code says what becomes of them."""

from __future__ import annotations

from typing import Final

FORMS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("in=text", "A, B, C", "in=text out=echo", "a chat; earlier prompts come back with the arrow keys"),
    ("in=stdin", "A, B, C", "in=stdin out=echo", "one prompt from a pipe, the answer on standard output"),
    ("in=http", "A, B, C", "in=http out=echo", "the OpenAI API, on loopback; `--http-host 0.0.0.0` opens it"),
    ("in=grpc", "B, C", "in=grpc out=echo",
     "KServe's protocol over gRPC ([grpc.md](../how-to/serve/grpc.md)); the OpenAI API beside it on 8788"),
    ("in=dyn://NAMESPACE.COMPONENT.ENDPOINT", "A, B, C", "in=dyn://a.b.c out=echo",
     "a worker; missing parts are NS, C and E, surplus ones join the endpoint's name; `load_metrics` is beside it"),
    ("in=batch:FILE", "A, B", "in=batch:p.jsonl out=echo",
     "beyond NVIDIA Dynamo: bounded, resumed after a crash, bad lines are told, OpenAI's lines, order on request"),
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
    ("out=pystr:FILE", "A", "out=pystr:e.py", "an engine of your own, text in and out"),
    ("out=pytok:FILE", "A", "out=pytok:e.py m", "the same, tokens in and out"),
    ("out=dyn", "A", "in=http out=dyn", "workers found in etcd"),
    ("out=dyn://PATH", "A", "in=http out=dyn://a.b.c",
     "the workers of that endpoint, and prefill workers of its namespace"),
    ("out=auto", "B", "in=http out=auto", "the same as dyn"),
    ("out=mocker", "A, B", "out=mocker", "a simulated engine; needs no model here"),
    ("out= left out, a .gguf file", "A, B", "m.gguf", "llama.cpp (mistral.rs there)"),
    ("out= left out, another model", "A, B", "Qwen/Qwen3-0.6B", "mistral.rs"),
    ("out= left out, no model", "B", "in=http", "echoes"),
    ("-v, -vv", "A, B, C", "-vv out=echo", "debug and trace, anywhere in the line"),
    ("-- ARGUMENTS", "A", "out=pystr:e.py -- --x 1", "arguments of an engine of your own"),
)  # fmt: skip
"""Form, ages, a line with it, what it does."""
