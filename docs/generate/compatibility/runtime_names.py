"""The names of NVIDIA Dynamo's `dynamo.runtime` in three ages, and what each of them is here.

They are those of its packages 0.1.1 and 0.3.2 (A), 0.8.1 (B) and 1.6.1 (C), as `dir` shows them there. The state is
asked of the code: what `left_out` lists is refused, what changes nothing is said here, everything else has to be found.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from typing import Any, Final

from dynamo.runtime.process.legacy_flags import NEEDLESS, REFUSED
from dynamo.runtime.unsupported import LEFT_OUT

WORKS: Final = "works"
MODULE: Final = "dynamo.runtime"
_ABC: Final = "A, B, C"
NAMES: Final[dict[str, dict[str, str]]] = {
    "": {
        _ABC: "DistributedRuntime Client dynamo_worker dynamo_endpoint",
        "A, B": "Component Backend ModelDeploymentCard OAIChatPreprocessor",
        "A": "EtcdKvCache",
        "B": "Namespace",
        "B, C": "Context Endpoint",
        "C": "PyAsyncRequestStream UnaryClient serve_unary_endpoint",
    },
    "dynamo_worker": {"A": "static=", "B, C": "enable_nats="},
    "DistributedRuntime": {
        _ABC: "event_loop= event_loop shutdown",
        "A": "is_static= etcd_client primary_token",
        "A, B": "namespace child_token",
        "B": "store_kv=",
        "B, C": "request_plane= enable_nats= register_engine_route detached to_capsule",
        "C": "discovery_backend= event_plane= response_plane= endpoint set_health_status system_status_server_url",
    },
    "CancellationToken": {"A, B": "cancel cancelled"},
    "Namespace": {"A, B": "component", "B": "metrics"},
    "Component": {"A, B": "endpoint create_service", "B": "metrics"},
    "Endpoint": {
        _ABC: "serve_endpoint client",
        "A": "lease_id",
        "B, C": "connection_id metrics serve_endpoint(graceful_shutdown=) serve_endpoint(metrics_labels=) "
        "serve_endpoint(health_check_payload=)",
        "C": "client(router_mode=) serve_bidirectional_endpoint first_token_source unregister_endpoint_instance "
        "register_endpoint_instance",
    },
    "Client": {
        _ABC: "generate random round_robin direct generate(annotated=)",
        "A": "static endpoint_ids wait_for_endpoints",
        "A, B, C ": "instance_ids wait_for_instances",
        "B, C": "generate(context=)",
        "C": "instances device_aware_weighted wait_for_instance_by_runtime_data wait_for_instances_by_runtime_data",
    },
    "Annotated": {_ABC: "data event comments id is_error"},
    "Context": {
        "B, C": "id is_stopped is_killed stop_generating async_killed_or_stopped trace_id span_id parent_span_id",
        "C": "metadata= detached trace_headers current_span start_span notify_first_token",
    },
    "EtcdClient": {
        "A": "kv_create kv_create_or_validate kv_put kv_get_prefix primary_lease_id revoke_lease",
    },
    "EtcdKvCache": {"A": "create get get_all put delete clear_all"},
    "UnaryClient": {"C": "complete"},
    "logging": {
        "A": "configure_logger",
        _ABC: "configure_dynamo_logging LogHandler",
        "A, B, C ": "log_level_mapping construct_formatter_prefix configure_vllm_logging configure_sglang_logging",
        "B": "configure_trtllm_logging map_dyn_log_to_tllm_level",
        "B, C": "get_bool_env_var",
        "C": "VllmColorFormatter python_log_level_mapping",
    },
}
"""Class or module (empty: `dynamo.runtime` itself) to names by age; `x=` is an argument, `f(x=)` one of a method."""
_PLANE: Final = "requests, answers and events travel over NATS"
_SPANS: Final = "a span of your own is not sent: use OpenTelemetry, with `trace_headers()` as its parent"
CHANGES_NOTHING: Final = {
    "dynamo_worker(enable_nats=)": f"{_PLANE}; a DeprecationWarning says so",
    "DistributedRuntime(enable_nats=)": _PLANE,
    "DistributedRuntime(request_plane=)": _PLANE,
    "DistributedRuntime(event_plane=)": _PLANE,
    "DistributedRuntime(response_plane=)": _PLANE,
    "Component.create_service": "`serve_endpoint` makes the endpoint known; a DeprecationWarning says so",
    "Endpoint.serve_endpoint(metrics_labels=)": "a program has its own metrics; those of dynamo-worker have labels",
    "Endpoint.serve_endpoint(health_check_payload=)": "handlers aren't probed: `DYN_SYSTEM_PORT` shows `/health`",
    "Context.current_span": _SPANS,
    "Context.start_span": _SPANS,
    "Context.notify_first_token": "frontends measure the first token when it comes",
}


def name_state(name: str) -> tuple[str, str]:
    """Return the state of `Client.static`, `dynamo_worker(static=)` and the like, with a remark.

    `LookupError`: not found.
    """
    if name in LEFT_OUT:
        return REFUSED, LEFT_OUT[name]
    value = _find(name)
    if name in CHANGES_NOTHING:
        return NEEDLESS, CHANGES_NOTHING[name]
    first_line = "" if name.endswith(")") else (inspect.getdoc(value) or "").partition("\n")[0]
    return WORKS, first_line or "as there"


def _find(name: str) -> Any:
    """Find what the code has under a name; an argument is looked for in the signature."""
    path, _, argument = name.removesuffix(")").partition("(")
    value: Any = importlib.import_module(MODULE)
    if path.startswith("logging."):
        value, path = importlib.import_module(f"{MODULE}.logging"), path.removeprefix("logging.")
    for part in path.split("."):
        if not hasattr(value, part):
            raise LookupError(f"{name} has no state: neither found nor in left_out.py")
        value = getattr(value, part)
    if argument and argument.removesuffix("=") not in inspect.signature(value).parameters:
        raise LookupError(f"{name} has no state: there is no such argument")
    return value


def names() -> Iterable[tuple[str, str]]:
    """Yield every name as it is shown, with its ages."""
    for owner, by_age in NAMES.items():
        for ages, listed in by_age.items():
            for name in listed.split():
                whole = name if not owner else f"{owner}({name})" if name.endswith("=") else f"{owner}.{name}"
                yield whole, ages.strip()


def rows() -> Iterable[tuple[str, ...]]:
    """Yield the rows of the table of docs/reference/compatibility/."""
    for name, ages in names():
        yield (f"`{name}`", ages, *name_state(name))
