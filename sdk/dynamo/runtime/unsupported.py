"""Names of NVIDIA Dynamo's runtime that have no meaning here, each with what to do instead.

Importing one (`from dynamo.runtime import …`) or calling one says the sentence. docs/reference/compatibility/ is
made from this table too.
"""

from __future__ import annotations

from typing import Final, NoReturn

from dynamo.runtime.errors import InvalidArgument

_IN_FRONTENDS: Final = "frontends do this for each model that a worker registers: call register_llm, start a frontend"
_OWN_FIGURES: Final = "keep metrics with prometheus_client: DYN_SYSTEM_PORT shows them under /metrics"
_OWN_LOGS: Final = "call configure_dynamo_logging, and set DYN_LOG"
_ENGINES_LOGS: Final = "dynamo-worker sets the logging of the engine that it starts"
_ONE_REQUEST: Final = "a request is one message here: take it with serve_endpoint, and send another for what follows"

LEFT_OUT: Final = {
    "Backend": _IN_FRONTENDS,
    "OAIChatPreprocessor": _IN_FRONTENDS,
    "ModelDeploymentCard": "register_llm makes and publishes a model's card: give it what the card shall say",
    "PyAsyncRequestStream": _ONE_REQUEST,
    "DistributedRuntime.detached": "hand on the runtime that dynamo_worker gave you",
    "DistributedRuntime.to_capsule": "there is no native library here: give the object itself",
    "Endpoint.serve_bidirectional_endpoint": _ONE_REQUEST,
    "Endpoint.first_token_source": "frontends measure the first token: see dynamo_frontend_time_to_first_token_seconds",
    "Namespace.metrics": _OWN_FIGURES,
    "Component.metrics": _OWN_FIGURES,
    "Endpoint.metrics": _OWN_FIGURES,
    "logging.LogHandler": _OWN_LOGS,
    "logging.construct_formatter_prefix": _OWN_LOGS,
    "logging.python_log_level_mapping": _OWN_LOGS,
    "logging.VllmColorFormatter": _ENGINES_LOGS,
    "logging.configure_vllm_logging": _ENGINES_LOGS,
    "logging.configure_sglang_logging": _ENGINES_LOGS,
    "logging.configure_trtllm_logging": _ENGINES_LOGS,
    "logging.map_dyn_log_to_tllm_level": _ENGINES_LOGS,
    "Client.device_aware_weighted": "instances have no device weights here: use least_loaded or power_of_two",
}


def sentence(name: str) -> str:
    return f"{name} is not there: {LEFT_OUT[name]}"


def refuse(name: str) -> NoReturn:
    """Raise `InvalidArgument` with what to do instead."""
    raise InvalidArgument(sentence(name))
