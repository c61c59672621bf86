"""Environment variables of NVIDIA Dynamo that no setting here reads, with what to use instead.

Those that belong to a flag come from the tables of flags; those that are read here, from the settings and from
docs/reference/configuration.md.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "DYN_LOG DYN_LOGGING_JSONL DYN_LOGGING_CONFIG_PATH DYN_LOGGING_CONSOLE_FORMAT DYN_SDK_DISABLE_ANSI_LOGGING "
    "DYN_LOG_USE_LOCAL_TZ DYN_LOGGING_SPAN_EVENTS OTEL_EXPORT_ENABLED OTEL_EXPORTER_OTLP_TRACES_ENDPOINT "
    "OTEL_SERVICE_NAME DYN_RUNTIME_NUM_WORKER_THREADS DYN_RUNTIME_MAX_BLOCKING_THREADS "
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS DYN_RUNTIME_INHIBITED_DURATION_SECS DYN_SYSTEM_ENABLED DYN_SYSTEM_HOST "
    "DYN_SYSTEM_PORT DYN_SYSTEM_STARTING_HEALTH_STATUS DYN_SYSTEM_HEALTH_PATH DYN_SYSTEM_LIVE_PATH "
    "DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS DYN_CANARY_WAIT_TIME DYN_HEALTH_CHECK_ENABLED DYN_HEALTH_CHECK_PAYLOAD "
    "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS NATS_SERVER NATS_AUTH_USERNAME "
    "NATS_AUTH_PASSWORD NATS_AUTH_TOKEN NATS_AUTH_NKEY NATS_AUTH_CREDENTIALS_FILE NATS_TLS_CA_CERT_PATH "
    "DYN_NATS_STREAM_MAX_AGE DYN_NATS_REQUEST_TIMEOUT_SECS ETCD_ENDPOINTS ETCD_LEASE_TTL ETCD_AUTH_USERNAME "
    "ETCD_AUTH_PASSWORD ETCD_AUTH_CA ETCD_AUTH_CLIENT_CERT ETCD_AUTH_CLIENT_KEY DYN_HTTP_HOST DYN_HTTP_PORT "
    "DYN_HTTP_BODY_LIMIT_MB DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS DYN_HTTP_OVERLOAD_STATUS_CODE "
    "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS DYN_HTTP_SVC_CHAT_PATH DYN_HTTP_SVC_CMP_PATH DYN_HTTP_SVC_MODELS_PATH "
    "DYN_HTTP_SVC_HEALTH_PATH DYN_HTTP_SVC_LIVE_PATH DYN_HTTP_SVC_METRICS_PATH DYN_FRONTEND_FD_LIMIT_TARGET "
    "DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS DYN_ENABLE_FORCE_INCLUDE_USAGE DYN_DISABLE_FRONTEND_NVEXT "
    "DYN_DISABLE_FRONTEND_ADMIN_API DYN_DISCOVERY_BACKEND DYN_STORE_KV DYN_FILE_KV DYN_REQUEST_PLANE "
    "DYN_REQUEST_PLANE_CODEC DYN_RESPONSE_PLANE DYN_EVENT_PLANE DYN_EVENT_PLANE_CODEC DYN_EVENT_PLANE_HOST "
    "DYN_ZMQ_BROKER_URL DYN_ZMQ_BROKER_ENABLED DYN_TCP_RPC_HOST DYN_TCP_RPC_PORT DYN_TCP_POOL_SIZE "
    "DYN_TCP_CHANNEL_BUFFER DYN_TCP_REQUEST_TIMEOUT DYN_TCP_RESPONSE_STREAM_HOST DYN_TCP_RESPONSE_STREAM_PORT "
    "DYN_NAMESPACE DYN_NAMESPACE_PREFIX DYN_NAMESPACE_WORKER_SUFFIX DYN_COMPONENT DYN_ENDPOINT DYN_LORA_ENABLED "
    "DYN_LORA_PATH DYN_KVBM_CPU_CACHE_GB DYN_KVBM_DISK_CACHE_GB MODEL_EXPRESS_URL DYN_MOCKER_KV_CACHE_TRACE "
    "DYN_ROUTER_OVERLAP_SCORE_WEIGHT DYN_ROUTER_KV_OVERLAP_SCORE_WEIGHT DYN_OVERLAP_SCORE_WEIGHT DYN_ROUTER_TTL "
    "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS DYN_KUBE_DISCOVERY_MODE POD_NAME POD_NAMESPACE POD_UID "
    "DYN_TOKEN_ECHO_DELAY_MS HF_TOKEN HF_HOME HF_HUB_CACHE HF_ENDPOINT HF_HUB_OFFLINE"
)
"""Separated by blanks."""
_NOT_READ: Final = "not read"
_NATS: Final = "requests, answers and events travel over NATS"
_LORA: Final = "adapters are among an engine's arguments (`lora` of llamacpp); they can't be loaded later"
_NO_TCP: Final = "there is no TCP plane"
STATES: Final[dict[str, tuple[str, str]]] = {
    "DYN_LOGGING_CONFIG_PATH": (_NOT_READ, "`DYN_LOG` says it: `warn,dynamo.runtime=debug`"),
    "DYN_LOGGING_CONSOLE_FORMAT": (_NOT_READ, "`DYN_LOGGING_JSONL=1` for JSON"),
    "DYN_LOG_USE_LOCAL_TZ": (_NOT_READ, "lines have the process's time zone (`TZ`)"),
    "DYN_LOGGING_SPAN_EVENTS": (_NOT_READ, "lines carry request ids; spans go to a collector (`OTEL_EXPORT_ENABLED`)"),
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": ("works", "with the extra `otel`"),
    "DYN_RUNTIME_NUM_WORKER_THREADS": (_NOT_READ, "one loop per process; `dynamo-frontend --workers`"),
    "DYN_RUNTIME_MAX_BLOCKING_THREADS": (_NOT_READ, "one loop per process"),
    "DYN_RUNTIME_INHIBITED_DURATION_SECS": (_NOT_READ, "the canary (`DYN_CANARY_WAIT_TIME`) takes silent engines out"),
    "DYN_SYSTEM_STARTING_HEALTH_STATUS": (_NOT_READ, "not ready until frontends can route here"),
    "DYN_SYSTEM_HEALTH_PATH": (_NOT_READ, "`/health`"),
    "DYN_SYSTEM_LIVE_PATH": (_NOT_READ, "`/live`"),
    "DYN_SYSTEM_USE_ENDPOINT_HEALTH_STATUS": (_NOT_READ, "ready when every endpoint is"),
    "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT": (_NOT_READ, "`DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS`"),
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": (_NOT_READ, "`DYN_GRACEFUL_SHUTDOWN_TIMEOUT_SECS`"),
    "NATS_TLS_CA_CERT_PATH": (_NOT_READ, "`NATS_TLS_CA`"),
    "DYN_NATS_STREAM_MAX_AGE": (_NOT_READ, "no streams of JetStream are used"),
    "DYN_NATS_REQUEST_TIMEOUT_SECS": (_NOT_READ, "`--first-token-timeout-secs` and the request's own limit"),
    "DYN_HTTP_OVERLOAD_STATUS_CODE": (_NOT_READ, "503 with `Retry-After`"),
    "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS": (_NOT_READ, "TCP's keep-alive finds clients that are gone"),
    **{f"DYN_HTTP_SVC_{name}_PATH": (_NOT_READ, "paths are OpenAI's; a proxy can move them")
       for name in ("CHAT", "CMP", "MODELS", "HEALTH", "LIVE", "METRICS")},
    "DYN_FRONTEND_FD_LIMIT_TARGET": (_NOT_READ, "raised to 65,536 or the hard limit"),
    "DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS": (_NOT_READ, "unknown fields are ignored; `DYN_STRICT_FIELDS` refuses"),
    "DYN_ENABLE_FORCE_INCLUDE_USAGE": (_NOT_READ, "clients ask with `stream_options.include_usage`"),
    "DYN_DISABLE_FRONTEND_NVEXT": (_NOT_READ, "a proxy can drop the field"),
    "DYN_FILE_KV": (_NOT_READ, "workers are found in etcd; in one process in memory"),
    "DYN_REQUEST_PLANE_CODEC": (_NOT_READ, "msgpack"),
    "DYN_EVENT_PLANE_CODEC": (_NOT_READ, "msgpack"),
    "DYN_EVENT_PLANE_HOST": (_NOT_READ, _NATS),
    "DYN_ZMQ_BROKER_URL": (_NOT_READ, _NATS),
    "DYN_ZMQ_BROKER_ENABLED": (_NOT_READ, _NATS),
    **{f"DYN_TCP_{name}": (_NOT_READ, _NO_TCP) for name in (
        "RPC_HOST", "RPC_PORT", "POOL_SIZE", "CHANNEL_BUFFER", "REQUEST_TIMEOUT", "RESPONSE_STREAM_HOST",
        "RESPONSE_STREAM_PORT")},
    "DYN_NAMESPACE_WORKER_SUFFIX": (_NOT_READ, "the operator names revisions itself; `--namespace` says it by hand"),
    "DYN_COMPONENT": (_NOT_READ, "`DYN_ENDPOINT` with all three names"),
    "DYN_LORA_ENABLED": (_NOT_READ, _LORA),
    "DYN_LORA_PATH": (_NOT_READ, _LORA),
    "DYN_KVBM_CPU_CACHE_GB": (_NOT_READ, "the engine's own arguments say where blocks are kept"),
    "DYN_KVBM_DISK_CACHE_GB": (_NOT_READ, "the engine's own arguments say where blocks are kept"),
    "DYN_MOCKER_KV_CACHE_TRACE": (_NOT_READ, "`DYN_LOG=dynamo.worker=debug`"),
    "DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS": (_NOT_READ, "a request counts until it ends, however long it is"),
    "DYN_KUBE_DISCOVERY_MODE": (_NOT_READ, "workers are found in etcd"),
    "POD_NAMESPACE": (_NOT_READ, "workers are found in etcd"),
    "POD_UID": (_NOT_READ, "workers are found in etcd"),
    **dict.fromkeys(("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
                    ("works", "read by the hub's own library, which fetches models")),
}  # fmt: skip
"""State and a remark, of those that neither a setting nor a connection reads."""
