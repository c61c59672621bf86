"""NVIDIA Dynamo's flags, by program and version: names only, as its packages and pages print them.

`states.py` looks each of them up in the code, and docs/reference/compatibility/flags.md has its state; a test fails
where one has none. Versions: A is 0.1 to 0.3 (2025), B 0.4 to 0.9, C 1.0 to 1.6 (2026).
"""

from __future__ import annotations

from typing import Final

FLAGS: Final[dict[str, dict[str, str]]] = {
    "dynamo-run": {
        "A, B": (
            "--base-gpu-id --context-length --extra-engine-args --http-port --kv-cache-block-size "
            "--kv-overlap-score-weight --leader-addr --max-num-batched-tokens --migration-limit --model-config "
            "--model-name --model-path --node-rank --num-nodes --request-template --router-mode "
            "--router-temperature --tensor-parallel-size --use-kv-events -v"
        ),
        "B": (
            "--discovery-backend --request-plane --router-replica-sync --router-track-active-blocks "
            "--tls-cert-path --tls-key-path"
        ),
        "A": (
            "--dist-init-addr --kv-gpu-cache-usage-weight --kv-waiting-requests-weight --verbosity"
        ),
    },
    "python -m dynamo.frontend": {
        "B, C": (
            "--active-decode-blocks-threshold --active-prefill-tokens-threshold --enforce-disagg "
            "--grpc-metrics-port --http-host --http-port --interactive --kserve-grpc-server --kv-cache-block-size "
            "--kv-events --kv-overlap-score-weight --metrics-prefix --model-name --model-path --namespace "
            "--request-plane --router-mode --router-replica-sync --router-temperature --tls-cert-path "
            "--tls-key-path --version"
        ),
        "C": (
            "--active-prefill-tokens-threshold-frac --admission-control --assume-kv-reuse --chat-template "
            "--discovery-backend --dump-config-to --dyn-chat-processor --dyn-debug-perf --dyn-preprocess-workers "
            "--enable-anthropic-api --enable-session-prefix-index --enable-streaming-reasoning-dispatch "
            "--enable-streaming-tool-dispatch --event-plane --exclude-tools-when-tool-choice-none "
            "--frontend-route-extension --load-aware --migration-limit --migration-max-seq-len --namespace-prefix "
            "--nats-tls-ca-cert-path --nats-tls-client-cert-path --nats-tls-client-key-path --nats-tls-insecure "
            "--reasoning-field-name --reasoning-parser --response-plane --router-approximate-cache-policy "
            "--router-assume-kv-reuse --router-conditional-disagg --router-conditional-disagg-config "
            "--router-decode-active-request-weight --router-decode-policy --router-disk-cache-hit-weight "
            "--router-event-threads --router-host-cache-hit-weight --router-kv-events "
            "--router-kv-overlap-score-credit --router-kv-overlap-score-credit-decay "
            "--router-kv-overlap-score-weight --router-min-initial-workers --router-policy-config "
            "--router-predicted-ttl-secs --router-prefill-load-model --router-prefill-load-scale "
            "--router-prefill-policy --router-queue-policy --router-queue-threshold "
            "--router-session-affinity-mode --router-session-affinity-ttl-secs --router-track-active-blocks "
            "--router-track-output-blocks --router-track-prefill-tokens --router-tracking-hash "
            "--router-tracking-key-file --router-tracking-key-id --router-ttl-secs --serve-indexer "
            "--shared-cache-multiplier --shared-cache-type --strip-anthropic-preamble --tcp-tls-ca-cert-path "
            "--tcp-tls-cert-path --tcp-tls-client-ca-cert-path --tcp-tls-client-cert-path "
            "--tcp-tls-client-key-path --tcp-tls-key-path --tls-client-ca-cert-path --tokenizer "
            "--tokenizer-fallback --tool-call-parser --track-active-blocks --track-output-blocks "
            "--trust-remote-code --use-remote-indexer"
        ),
        "B": (
            "--custom-backend-metrics-endpoint --custom-backend-metrics-polling-interval --exp-python-factory "
            "--no-track-active-blocks --router-max-tree-size --router-prune-target-ratio --router-reset-states "
            "--router-snapshot-threshold --router-ttl --store-kv"
        ),
    },
    "python -m dynamo.router": {
        "B, C": (
            "--block-size --endpoint --kv-overlap-score-weight --router-replica-sync --router-temperature "
            "--router-ttl-secs"
        ),
        "C": (
            "--assume-kv-reuse --enable-session-prefix-index --kv-events --load-aware "
            "--router-approximate-cache-policy --router-assume-kv-reuse --router-block-size "
            "--router-conditional-disagg --router-conditional-disagg-config --router-decode-active-request-weight "
            "--router-decode-policy --router-disk-cache-hit-weight --router-event-threads "
            "--router-host-cache-hit-weight --router-kv-events --router-kv-overlap-score-credit "
            "--router-kv-overlap-score-credit-decay --router-kv-overlap-score-weight --router-policy-config "
            "--router-predicted-ttl-secs --router-prefill-load-model --router-prefill-load-scale "
            "--router-prefill-policy --router-queue-policy --router-queue-threshold --router-track-active-blocks "
            "--router-track-output-blocks --router-track-prefill-tokens --router-tracking-hash "
            "--router-tracking-key-file --router-tracking-key-id --serve-indexer --shared-cache-multiplier "
            "--shared-cache-type --track-active-blocks --track-output-blocks --use-remote-indexer"
        ),
        "B": (
            "--no-kv-events --no-track-active-blocks --router-max-tree-size --router-prune-target-ratio "
            "--router-reset-states --router-snapshot-threshold"
        ),
    },
    "python -m dynamo.mocker": {
        "B, C": (
            "--block-size --bootstrap-ports --data-parallel-size --enable-chunked-prefill --enable-prefix-caching "
            "--endpoint --extra-engine-args --is-decode-worker --is-prefill-worker --max-num-batched-tokens "
            "--max-num-seqs --model-name --model-path --no-enable-chunked-prefill --no-enable-prefix-caching "
            "--num-gpu-blocks-override --num-workers --planner-profile-data --request-plane --speedup-ratio "
            "--startup-time --version"
        ),
        "C": (
            "--aic-attention-dp-size --aic-backend --aic-backend-version --aic-moe-ep-size --aic-moe-tp-size "
            "--aic-mtp-seed --aic-nextn --aic-nextn-accept-rates --aic-perf-model --aic-system --aic-tp-size "
            "--ais-attention-dp-size --ais-backend --ais-backend-version --ais-moe-ep-size --ais-moe-tp-size "
            "--ais-mtp-seed --ais-nextn --ais-nextn-accept-rates --ais-perf-config --ais-perf-model --ais-system "
            "--ais-tp-size --decode-speedup-ratio --disaggregation-mode --discovery-backend --engine-type "
            "--event-plane --free-gpu-memory-fraction --gpu-memory-utilization --kv-bytes-per-token "
            "--kv-cache-dtype --kv-transfer-bandwidth --kv-transfer-timing-mode --max-model-len "
            "--mem-fraction-static --num-host-blocks --preemption-mode --reasoning --response-plane "
            "--response-replay-trace-path --sglang-chunked-prefill-size --sglang-clip-max-new-tokens "
            "--sglang-generate --sglang-max-prefill-tokens --sglang-page-size --sglang-schedule-conservativeness "
            "--sglang-schedule-policy --stagger-delay --trtllm-capacity-scheduler-policy --zmq-kv-events-ports "
            "--zmq-replay-ports"
        ),
        "B": (
            "--enable-local-indexer --store-kv --watermark"
        ),
    },
    "python -m dynamo.vllm": {
        "B, C": (
            "--connector --custom-jinja-template --dyn-endpoint-types --dyn-reasoning-parser "
            "--dyn-tool-call-parser --enable-multimodal --mm-prompt-template --model --request-plane "
            "--served-model-name --use-vllm-tokenizer --version"
        ),
        "C": (
            "--benchmark-collect-imbalanced --benchmark-decode-batch-granularity "
            "--benchmark-decode-length-granularity --benchmark-hybrid-live-state --benchmark-max-batch-size "
            "--benchmark-mode --benchmark-output-path --benchmark-points-file "
            "--benchmark-prefill-batch-granularity --benchmark-prefill-granularity "
            "--benchmark-prefill-kv-read-granularity --benchmark-randomize-kda-state --benchmark-timeout "
            "--benchmark-warmup-iterations --classify-worker --config --custom-encoder-class "
            "--decode-max-batch-size-samples --decode-max-kv-read-token-samples --disaggregation-mode "
            "--discovery-backend --dump-config-to --dyn-default-thinking-mode --dyn-enable-structural-tag "
            "--dyn-structural-tag --dyn-structural-tag-schema --dyn-structural-tag-scope "
            "--embedding-frontend-tokenization --embedding-transfer-mode --embedding-worker "
            "--embedding-worker-processes --enable-rl --endpoint --endpoint-types --engine-request-limit "
            "--event-plane --exclude-tools-when-tool-choice-none --fpm-trace --frontend-decoding "
            "--gms-shadow-mode --headless --health-check-payload --kv-state-endpoint --media-output-fs-url "
            "--media-output-http-url --model-express-url --multimodal-embedding-cache-capacity-gb "
            "--multimodal-embedding-cache-publisher --namespace --nats-tls-ca-cert-path "
            "--nats-tls-client-cert-path --nats-tls-client-key-path --nats-tls-insecure "
            "--no-dyn-enable-structural-tag --output-modalities --prefill-max-kv-read-token-samples "
            "--prefill-max-new-token-samples --prefix-max-batch-size-samples --realtime --response-plane "
            "--route-to-encoder --tcp-tls-ca-cert-path --tcp-tls-cert-path --tcp-tls-client-ca-cert-path "
            "--tcp-tls-client-cert-path --tcp-tls-client-key-path --tcp-tls-handshake-timeout --tcp-tls-insecure "
            "--tcp-tls-key-path --tcp-tls-server-name"
        ),
        "B": (
            "--enable-local-indexer --is-decode-worker --is-prefill-worker --migration-limit "
            "--multimodal-decode-worker --multimodal-encode-prefill-worker --multimodal-encode-worker "
            "--multimodal-processor --multimodal-worker --store-kv"
        ),
    },
    "python -m dynamo.sglang": {
        "B, C": (
            "--config --custom-jinja-template --disaggregation-bootstrap-port --dump-config-to "
            "--dyn-endpoint-types --dyn-reasoning-parser --dyn-tool-call-parser --embedding-worker --endpoint "
            "--model-path --request-plane --served-model-name --use-sglang-tokenizer --version"
        ),
        "C": (
            "--connector --cuda-graph-backend-prefill --dedicated-mm-encoder --disable-piecewise-cuda-graph "
            "--disagg-config --disagg-config-key --disaggregation-mode --discovery-backend "
            "--dyn-default-thinking-mode --dyn-enable-structural-tag --dyn-structural-tag "
            "--dyn-structural-tag-schema --dyn-structural-tag-scope --embedding-transfer-mode --enable-multimodal "
            "--enable-rl --endpoint-types --engine-request-limit --engine-route --event-plane "
            "--exclude-tools-when-tool-choice-none --fpm-trace --frontend-decoding --gateway-workers "
            "--health-check-payload --image-diffusion-worker --kv-state-endpoint --media-output-fs-url "
            "--media-output-http-url --multimodal-embedding-cache-capacity-gb "
            "--multimodal-embedding-cache-publisher --namespace --nats-tls-ca-cert-path "
            "--nats-tls-client-cert-path --nats-tls-client-key-path --nats-tls-insecure "
            "--no-dyn-enable-structural-tag --output-modalities --rerank-worker --response-plane "
            "--sglang-trace-level --tcp-tls-ca-cert-path --tcp-tls-cert-path --tcp-tls-client-ca-cert-path "
            "--tcp-tls-client-cert-path --tcp-tls-client-key-path --tcp-tls-handshake-timeout --tcp-tls-insecure "
            "--tcp-tls-key-path --tcp-tls-server-name --video-generation-worker"
        ),
        "B": (
            "--config-key --enable-local-indexer --migration-limit --multimodal-encode-worker "
            "--multimodal-processor --multimodal-worker --store-kv"
        ),
    },
    "python -m dynamo.trtllm": {
        "B, C": (
            "--allowed-local-media-path --disaggregation-mode --dyn-endpoint-types --dyn-reasoning-parser "
            "--dyn-tool-call-parser --encode-endpoint --endpoint --expert-parallel-size --extra-engine-args "
            "--free-gpu-memory-fraction --gpus-per-node --kv-block-size --max-batch-size --max-beam-width "
            "--max-file-size-mb --max-num-tokens --max-seq-len --modality --model-path --override-engine-args "
            "--pipeline-parallel-size --publish-events-and-metrics --request-plane --served-model-name "
            "--tensor-parallel-size --version"
        ),
        "C": (
            "--attn-backend --connector --conversation-affinity --conversation-affinity-dp-rank-source "
            "--custom-jinja-template --default-guidance-scale --default-height --default-num-frames "
            "--default-num-images-per-prompt --default-num-inference-steps --default-width "
            "--disable-torch-compile --discovery-backend --dit-cfg-size --dit-ring-size --dit-ulysses-size "
            "--dump-config-to --dyn-default-thinking-mode --dyn-enable-structural-tag --dyn-structural-tag "
            "--dyn-structural-tag-schema --dyn-structural-tag-scope --enable-attention-dp --enable-cuda-graph "
            "--enable-fullgraph --enable-layerwise-nvtx-marker --enable-multimodal --enable-teacache "
            "--endpoint-types --engine-request-limit --event-plane --exclude-tools-when-tool-choice-none "
            "--fpm-trace --frontend-decoding --guided-decoding-backend --health-check-payload --kv-state-endpoint "
            "--load-format --media-output-fs-url --media-output-http-url --model --model-loader-extra-config "
            "--multimodal-embedding-cache-capacity-gb --multimodal-embedding-cache-publisher --namespace "
            "--nats-tls-ca-cert-path --nats-tls-client-cert-path --nats-tls-client-key-path --nats-tls-insecure "
            "--no-dyn-enable-structural-tag --no-publish-events-and-metrics --no-publish-kv-events "
            "--no-publish-metrics --output-modalities --publish-kv-events --publish-metrics --quant-algo "
            "--quant-dynamic --response-plane --revision --skip-warmup --tcp-tls-ca-cert-path --tcp-tls-cert-path "
            "--tcp-tls-client-ca-cert-path --tcp-tls-client-cert-path --tcp-tls-client-key-path "
            "--tcp-tls-handshake-timeout --tcp-tls-insecure --tcp-tls-key-path --tcp-tls-server-name "
            "--teacache-thresh --teacache-use-ret-steps --torch-dtype"
        ),
        "B": (
            "--enable-local-indexer --migration-limit --store-kv --use-nixl-connect"
        ),
    },
}  # fmt: skip
"""Program: versions: flags, separated by blanks."""

DEFAULTS: Final[dict[str, dict[str, str]]] = {
    "dynamo-run": {"--kv-overlap-score-weight": "2.0 in 0.3, 1.0 in 0.8", "--router-temperature": "0.5 in 0.3"},
    "python -m dynamo.frontend": {
        "--router-prefill-load-scale": "1.0",
        "--router-kv-overlap-score-credit": "1.0",
        "--router-replica-sync": "False",
    },
}
"""Defaults there that differ from those here, by program and flag."""
OF_VARIABLES: Final = {
    "DYN_HTTP_BODY_LIMIT_MB": ("45", "4"),
    "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": ("5, to go on accepting", "30, for running requests"),
    "DYN_ROUTER_PREFILL_LOAD_SCALE": ("1.0", "2.0 in the frontend"),
    "DYN_ROUTER_KV_OVERLAP_SCORE_CREDIT": ("1.0", "1.1 in the frontend"),
    "DYN_ROUTER_REPLICA_SYNC": ("False", "True"),
}
"""The same of variables: there, here."""
