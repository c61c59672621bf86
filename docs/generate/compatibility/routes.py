"""NVIDIA Dynamo's HTTP endpoints, which tests/frontend/routes/test_routes.py asks, and the endpoints of workers."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.http.engine_routes import PREFIX
from dynamo.worker.instance.metadata import ROUTE

SERVED: Final = "served"
ABSENT: Final = "not there"
ROUTES: Final[tuple[tuple[str, str, str, str, str], ...]] = (
    ("POST", "/v1/chat/completions", "A, B, C", SERVED, "streams, usage, logprobs, n, stop, seed, vLLM's extras"),
    ("POST", "/v1/completions", "A, B, C", SERVED, "prompts as text or tokens, one or several"),
    ("GET", "/v1/models", "A, B, C", SERVED, "`object` is `model` (0.3: `object`), with `context_window` and "
     "`max_model_len`"),
    ("GET", "/v1/models/{id}", "B, C", SERVED, "the id may hold slashes"),
    ("GET", "/v1/models/{id}/ready", "C", SERVED, "503 while nobody serves it"),
    ("GET", "/health", "A, B, C", SERVED, "200 without workers, as in 1.6; 503 while the frontend starts or stops"),
    ("GET", "/live", "B, C", SERVED, "the loop turns"),
    ("GET", "/metrics", "A, B, C", SERVED, "NVIDIA Dynamo's names"),
    ("GET", "/openapi.json", "B, C", SERVED, "and a page of it at `/docs`"),
    ("GET", "/busy_threshold", "B, C", SERVED, "for clients of this machine; `--open-admin-api` opens it"),
    ("POST", "/busy_threshold", "B, C", SERVED, "the same; 409 with `--workers`"),
    ("POST", "/tokenize", "vLLM", SERVED, "as vLLM has it"),
    ("POST", "/detokenize", "vLLM", SERVED, "as vLLM has it"),
    ("GET", "/version", "vLLM", SERVED, "as vLLM has it"),
    ("POST", "/v1/embeddings", "B, C", SERVED,
     "texts or tokens, one or several; [embeddings.md](../how-to/serve/embeddings.md)"),
    ("POST", "/v1/responses", "B, C", SERVED, "streams and whole; [responses.md](../how-to/serve/responses.md)"),
    ("POST", "/v1/conversations", "OpenAI", SERVED, "OpenAI's; with items, kept in memory as responses are"),
    ("POST", "/v1/responses/input_tokens", "C", SERVED, "the tokens of its prompt"),
    ("POST", "/v1/responses/compact", "OpenAI", ABSENT, "`truncation: auto` drops the oldest messages"),
    ("POST", "/v1/messages", "C", SERVED, "always, without a flag; [messages.md](../how-to/serve/messages.md)"),
    ("POST", "/v1/messages/count_tokens", "C", SERVED, "the tokens of its prompt"),
    ("POST", "/v1/classify", "C", ABSENT, "this version serves chats, completions, responses, messages and embeddings"),
    ("POST", "/v1/pooling", "C", ABSENT, "this version serves chats, completions, responses, messages and embeddings"),
    ("POST", "/v1/rerank", "C", SERVED, "by an embedding model: cosines; also `/rerank` and `/v2/rerank`"),
    ("POST", "/v1/score", "vLLM", SERVED, "the same of pairs; also `/score`"),
    ("GET", "/tokenizer_info", "vLLM", SERVED, "as lm-eval asks it; `?model=` where several are served"),
    ("GET", "/ping", "vLLM", SERVED, "the status of `/health`, without a body"),
    ("POST", "/ping", "vLLM", SERVED, "the same"),
    ("POST", "/v1/audio/speech", "C", ABSENT, "this version serves text"),
    ("POST", "/v1/images/generations", "C", ABSENT, "this version serves text"),
    ("POST", "/v1/images/edits", "C", ABSENT, "this version serves text"),
    ("POST", "/v1/videos", "C", ABSENT, "this version serves text"),
    ("GET", "/v1/realtime", "C", ABSENT, "this version serves streams over HTTP"),
    ("POST", "/clear_kv_blocks", "B", ABSENT, "restart the workers"),
)  # fmt: skip
"""Method, path, versions, state, a remark."""
OF_WORKERS: Final[tuple[tuple[str, str, str, str], ...]] = (
    ("`NAMESPACE.COMPONENT.generate`", "A, B, C", SERVED, "any endpoint's name; `prefill.generate` of prefill workers"),
    ("`NAMESPACE.COMPONENT.load_metrics`", "A", SERVED,
     "beside workers of `dynamo-run in=dyn://`; of others with `--load-metrics`"),
    ("`NAMESPACE.router.generate`, `.best_worker_id`, `.get_overlap_scores`", "B, C", SERVED,
     "`python -m dynamo.router`"),
    ("`worker_kv_query_source_*`", "C", ABSENT, "routers ask workers for snapshots over their own connection"),
    ("System server `/health`, `/live`, `/metrics`", "B, C", SERVED,
     "`--system-port`; loopback unless `--system-host` says otherwise"),
    (f"System server `{PREFIX}*`", "C", SERVED,
     "what an engine or a user's file registers; from this machine only, or with `--open-engine-routes`"),
    (f"System server `{ROUTE}/*`", "C", SERVED, "card, capacity, model files; frontends fetch those over NATS"),
    ("System server `/metadata`, `/loras`", "C", ABSENT, "`/v1/metadata` has what is known"),
)  # fmt: skip
"""Endpoint, versions, state, a remark."""
