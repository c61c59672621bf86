"""Flags of NVIDIA Dynamo's worker programs (0.4 to 1.6) that are no settings here: renamed, needless or refused."""

from __future__ import annotations

from typing import Final

from dynamo.runtime.process.legacy_flags import PLANES, LegacyFlag, needless, refused, renamed

_TEXT_ONLY: Final = "this version serves text"
_NO_TAGS: Final = "answers are held to a schema only by tool_choice and the requests' guided_* fields"
_BY_FRONTEND: Final = "bound requests at the frontend: --max-concurrent-requests, --max-requests-per-model"

_WORKERS: Final = (
    renamed("--custom-jinja-template", "--chat-template", "{}", env="DYN_CUSTOM_JINJA_TEMPLATE"),
    refused("--dyn-structural-tag --dyn-structural-tag-scope --dyn-structural-tag-schema", _NO_TAGS,
            env="DYN_STRUCTURAL_TAG, DYN_STRUCTURAL_TAG_SCOPE, DYN_STRUCTURAL_TAG_SCHEMA"),
    refused("--dyn-enable-structural-tag", _NO_TAGS, switch=True, env="DYN_ENABLE_STRUCTURAL_TAG"),
    refused("--dyn-default-thinking-mode", "requests say chat_template_kwargs", env="DYN_DEFAULT_THINKING_MODE"),
    needless("--no-dyn-enable-structural-tag", "it is off", switch=True),
    needless("--exclude-tools-when-tool-choice-none", "it is so", switch=True,
             env="DYN_EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE"),
    needless("--endpoint-types --dyn-endpoint-types", "a model answers chats where it has a template, completions "
             "always", plain=["chat,completions"], env="DYN_ENDPOINT_TYPES"),
    needless("--enable-local-indexer", "workers keep what they cache, and routers ask them", env="DYN_LOCAL_INDEXER"),
    refused("--connector", "the engine's own arguments say how blocks travel (--kv-transfer-config)",
            plain=["none", "null", "nixl"], env="DYN_CONNECTOR"),
    refused("--engine-request-limit", _BY_FRONTEND, env="DYN_ENGINE_REQUEST_LIMIT"),
    refused("--fpm-trace", "/metrics has the metrics of each step", switch=True, env="DYN_FPM_TRACE"),
    needless("--no-fpm-trace", "it is off", switch=True),
    refused("--kv-state-endpoint", "a worker's endpoint has its KV state", env="DYN_KV_STATE_ENDPOINT"),
    refused("--dump-config-to", "`--help` shows every value and its variable", env="DYN_DUMP_CONFIG_TO"),
    refused("--enable-multimodal --multimodal-processor --multimodal-worker --multimodal-encode-worker "
            "--multimodal-decode-worker --multimodal-encode-prefill-worker --frontend-decoding --route-to-encoder "
            "--classify-worker --rerank-worker --image-diffusion-worker --video-generation-worker",
            _TEXT_ONLY, switch=True),
    needless("--no-enable-multimodal --no-frontend-decoding --no-route-to-encoder --no-embedding-worker",
             "it is off", switch=True),
    refused("--modality --output-modalities", _TEXT_ONLY, plain=["text"], env="DYN_OUTPUT_MODALITIES"),
    refused("--mm-prompt-template --encode-endpoint --allowed-local-media-path --max-file-size-mb "
            "--custom-encoder-class --embedding-transfer-mode --media-output-fs-url --media-output-http-url "
            "--multimodal-embedding-cache-capacity-gb --embedding-worker-processes", _TEXT_ONLY),
    refused("--multimodal-embedding-cache-publisher --embedding-frontend-tokenization", _TEXT_ONLY, switch=True),
    refused("--enable-rl --realtime", "this version serves completions and chats", switch=True),
    needless("--no-enable-rl --no-realtime", "it is off", switch=True),
    refused("--model-express-url", "models come from the hub's cache or a folder", env="MODEL_EXPRESS_URL"),
)  # fmt: skip

_BENCHMARK: Final = (
    "mode", "points-file", "output-path", "timeout", "warmup-iterations", "max-batch-size", "collect-imbalanced",
    "decode-batch-granularity", "decode-length-granularity", "hybrid-live-state", "prefill-batch-granularity",
    "prefill-granularity", "prefill-kv-read-granularity", "randomize-kda-state",
)  # fmt: skip
_PICTURES: Final = (
    "--default-guidance-scale --default-height --default-num-frames --default-num-images-per-prompt "
    "--default-num-inference-steps --default-width --dit-cfg-size --dit-ring-size --dit-ulysses-size "
    "--teacache-thresh --attn-backend --torch-dtype --quant-algo --quant-dynamic --teacache-use-ret-steps"
)

VLLM: Final[tuple[LegacyFlag, ...]] = (
    *PLANES, *_WORKERS,
    renamed("--is-prefill-worker", "--disaggregation-mode", "prefill", switch=True),
    renamed("--is-decode-worker", "--disaggregation-mode", "decode", switch=True),
    renamed("--embedding-worker", "--runner", "pooling", switch=True),
    refused("--use-vllm-tokenizer", "templates and tokens are made by the frontend", switch=True,
            env="DYN_VLLM_USE_TOKENIZER"),
    needless("--no-use-vllm-tokenizer", "it is off", switch=True),
    refused("--headless", "give --node-rank 1 and on; the node of rank 0 leads", switch=True),
    refused("--gms-shadow-mode", "each worker holds its own weights", switch=True),
    refused(" ".join(f"--benchmark-{name}" for name in _BENCHMARK) + " --prefill-max-kv-read-token-samples "
            "--prefill-max-new-token-samples --prefix-max-batch-size-samples --decode-max-batch-size-samples "
            "--decode-max-kv-read-token-samples",
            "measure with `dynamo simulate` or any OpenAI load generator", env="DYN_BENCHMARK_MODE"),
)  # fmt: skip
SGLANG: Final[tuple[LegacyFlag, ...]] = (
    *PLANES, *_WORKERS,
    refused("--embedding-worker", "say it among the engine's arguments: is_embedding", switch=True),
    refused("--use-sglang-tokenizer", "templates and tokens are made by the frontend", switch=True,
            env="DYN_SGL_USE_TOKENIZER"),
    needless("--no-use-sglang-tokenizer", "it is off", switch=True),
    refused("--gateway-workers --engine-route", "a worker serves its endpoint only"),
    refused("--config --config-key --disagg-config --disagg-config-key",
            "give the arguments as flags or in --extra-engine-args FILE"),
)  # fmt: skip
TRTLLM: Final[tuple[LegacyFlag, ...]] = (
    *PLANES, *_WORKERS,
    needless("--publish-events-and-metrics --publish-kv-events --publish-metrics", "they are published", switch=True),
    needless("--use-nixl-connect --no-use-nixl-connect", "the engine's own arguments say how blocks travel",
             switch=True),
    refused("--no-publish-events-and-metrics --no-publish-kv-events --no-publish-metrics",
            "frontends ignore them with --no-use-kv-events", switch=True),
    refused("--conversation-affinity", "the frontend has it: --router-session-affinity-ttl-secs", switch=True),
    refused("--conversation-affinity-dp-rank-source", "the frontend has it: --router-session-affinity-ttl-secs"),
    refused(_PICTURES, _TEXT_ONLY),
    refused("--enable-teacache --enable-fullgraph --disable-torch-compile --enable-layerwise-nvtx-marker --skip-warmup",
            _TEXT_ONLY, switch=True),
)  # fmt: skip

_AIS: Final = (
    "perf-config", "system", "backend", "backend-version", "tp-size", "moe-tp-size", "moe-ep-size",
    "attention-dp-size", "nextn", "nextn-accept-rates", "mtp-seed", "model-path",
)  # fmt: skip
_TIMED: Final = "steps are timed by --speedup-ratio and the engine's arguments"
MOCKER: Final[tuple[LegacyFlag, ...]] = (
    *PLANES,
    renamed("--is-prefill-worker", "--disaggregation-mode", "prefill", switch=True),
    renamed("--is-decode-worker", "--disaggregation-mode", "decode", switch=True),
    needless("--enable-local-indexer", "workers keep what they cache, and routers ask them", switch=True),
    needless("--stagger-delay", "workers of one process start one after the other", plain=["0", "0.0", "-1"]),
    needless("--gpu-memory-utilization --mem-fraction-static --free-gpu-memory-fraction",
             "--num-gpu-blocks-override says how many blocks there are"),
    needless("--sglang-schedule-policy --sglang-page-size --sglang-max-prefill-tokens --sglang-chunked-prefill-size "
             "--sglang-clip-max-new-tokens --sglang-schedule-conservativeness --trtllm-capacity-scheduler-policy",
             "vLLM's scheduler is simulated"),
    needless("--sglang-generate --no-sglang-generate", "vLLM's scheduler is simulated", switch=True),
    refused("--zmq-kv-events-ports --zmq-replay-ports", "KV events travel over NATS"),
    refused("--planner-profile-data --response-replay-trace-path", _TIMED),
    refused("--num-host-blocks --host-offload-d2h-bandwidth-gbps --host-offload-h2d-bandwidth-gbps",
            "one tier of blocks is simulated"),
    refused("--ais-perf-model --aic-perf-model", _TIMED, switch=True),
    refused(" ".join(f"--ais-{name} --aic-{name}" for name in _AIS), _TIMED),
)  # fmt: skip
