"""What models take and give, and which are there, in KServe's words. Pure over the pool; `service.py` calls it."""

from __future__ import annotations

from typing import Any, Final

from dynamo.frontend.errors import ApiError
from dynamo.frontend.kserve import inference_pb2 as messages
from dynamo.frontend.kserve.request import FINISH_REASON, STREAMING, TEXT_INPUT, TEXT_OUTPUT
from dynamo.frontend.kserve.response import VERSION
from dynamo.frontend.routing.model_pool import ModelPool
from dynamo.llm.model_card import COMPLETIONS

PLATFORM: Final = "dynamo"
EXTENSIONS: Final = ("model_configuration", "model_repository")
"""Triton's additions to the protocol that are answered."""
_STRING: Final = ("BYTES", messages.TYPE_STRING)
_BOOL: Final = ("BOOL", messages.TYPE_BOOL)
_INPUTS: Final = ((TEXT_INPUT, _STRING, 1), (STREAMING[0], _BOOL, 1))
_OUTPUTS: Final = ((TEXT_OUTPUT, _STRING, -1), (FINISH_REASON, _STRING, -1))


def refuse_others(pool: ModelPool, name: str) -> None:
    """Raise for a model that is there and gives no completions: routes over HTTP are for those."""
    types = pool.types(name)
    if types and COMPLETIONS not in types:
        text = (
            f"The model '{name}' is not asked over gRPC: it answers {' and '.join(types)}, and text is completed here. "
            f"Ask it over HTTP."
        )
        raise ApiError(404, text, code="model_not_found", param="model")


def is_ready(pool: ModelPool, name: str) -> bool:
    """Tell whether it can be asked for text now."""
    return COMPLETIONS in pool.types(name)


def metadata(pool: ModelPool, name: str) -> Any:
    """Return a model's `ModelMetadataResponse`; `ApiError` where there is none."""
    served = _found(pool, name)
    answer = messages.ModelMetadataResponse(name=served, versions=[VERSION], platform=PLATFORM)
    for tensors, described in ((answer.inputs, _INPUTS), (answer.outputs, _OUTPUTS)):
        for tensor, (datatype, _), length in described:
            tensors.add(name=tensor, datatype=datatype, shape=[length])
    return answer


def configuration(pool: ModelPool, name: str) -> Any:
    """Return a model's `ModelConfigResponse`; likewise."""
    config = messages.ModelConfig(name=_found(pool, name), platform=PLATFORM, backend=PLATFORM)
    for tensor, (_, kind), length in _INPUTS:
        config.input.add(name=tensor, data_type=kind, dims=[length], optional=tensor != TEXT_INPUT)
    for tensor, (_, kind), length in _OUTPUTS:
        config.output.add(name=tensor, data_type=kind, dims=[length])
    config.model_transaction_policy.decoupled = True
    return messages.ModelConfigResponse(config=config)


def index(pool: ModelPool, ready: bool) -> Any:
    """Return the models that give completions, as `RepositoryIndexResponse`.

    `ready`: only those that can be asked now.
    """
    answer = messages.RepositoryIndexResponse()
    listed: dict[str, str] = {}
    for models in pool.sets():
        if COMPLETIONS in models.card.model_types and not is_ready(pool, models.name):
            listed[models.name] = models.failure or "loading"
        elif COMPLETIONS in models.card.model_types:
            listed[models.name] = ""
    for name, reason in listed.items():
        if not (ready and reason):
            answer.models.add(name=name, version=VERSION, state="UNAVAILABLE" if reason else "READY", reason=reason)
    return answer


def _found(pool: ModelPool, name: str) -> str:
    refuse_others(pool, name)
    return pool.find(name, COMPLETIONS).name
