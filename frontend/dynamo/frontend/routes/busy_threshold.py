"""GET and POST /busy_threshold: a model's thresholds while the frontend runs, in NVIDIA Dynamo's words and bodies.

DELETE is ours: back to what the flags say. All of it is this process's own, until it ends.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec import Meta

from dynamo.frontend.errors import ApiError, model_not_found
from dynamo.frontend.http.guard import is_local
from dynamo.frontend.http.requests import check_json, read_body
from dynamo.frontend.openai import requests as openai
from dynamo.frontend.openai.body import decode
from dynamo.frontend.openai.request_structs import Name
from dynamo.frontend.responses.cold_replies import json_reply
from dynamo.frontend.routing.admission_policy import Thresholds
from dynamo.frontend.routing.model_set import ModelSet
from dynamo.frontend.services import Services

_FIELDS: Final = tuple(field.name for field in dataclasses.fields(Thresholds))
LARGEST: Final = 16 << 10
"""Bytes of a request here: a name and some numbers."""


class BusyThresholdRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and the thresholds to set; without any, they are only asked for. Null leaves one as it is."""

    active_decode_blocks_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    active_prefill_tokens_threshold: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    active_prefill_tokens_threshold_frac: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    model: Name


def busy_router(services: Services) -> APIRouter:
    """Return the routes; none where the settings say so."""
    router = APIRouter(tags=["system"])
    if services.settings.access.disable_admin_api:
        return router
    busy_thresholds = services.pool.busy_thresholds

    @router.get("/busy_threshold")
    async def list_thresholds() -> Response:
        """List the busy thresholds of all models that have any."""
        names = dict.fromkeys(models.name for models in services.pool.sets())
        by_name = {name: busy_thresholds.of(name) for name in names}
        return json_reply({"thresholds": [_body(name, own) for name, own in by_name.items() if own.any]})

    @router.post("/busy_threshold", openapi_extra={"requestBody": _described()})
    async def set_thresholds(request: Request) -> Response:
        """Set the thresholds of a model, or return them."""
        asked = await _read(services, request)
        changes = {name: value for name in _FIELDS if (value := getattr(asked, name)) is not None}
        if not changes:
            return json_reply(_body(asked.model, busy_thresholds.of(asked.model)))
        _permit(services, request)
        sets = _changeable(services, asked.model)
        return json_reply(_body(asked.model, busy_thresholds.change(asked.model, sets, changes)))

    @router.delete("/busy_threshold/{model_id:path}")
    async def reset_thresholds(model_id: str, request: Request) -> Response:
        """Reset the thresholds of a model to the flags' values."""
        _permit(services, request)
        return json_reply(_body(model_id, busy_thresholds.reset(model_id, _changeable(services, model_id))))

    return router


def _described() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([BusyThresholdRequest])
    schema = components[BusyThresholdRequest.__name__]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _body(model: str, thresholds: Thresholds) -> dict[str, Any]:
    return {"model": model, **{name: getattr(thresholds, name) for name in _FIELDS}}


def _permit(services: Services, request: Request) -> None:
    """Raise the 403: a threshold of 0 refuses everybody, so whoever may ask for tokens may not set it."""
    if services.settings.access.open_admin_api:
        return
    if not is_local(request.scope):
        where = "from localhost only (for example by kubectl port-forward), without a proxy or web page"
        raise ApiError(403, f"Thresholds can be changed {where}, or with --open-admin-api.", code="not_local")


def _changeable(services: Services, model: str) -> list[ModelSet]:
    """Return the sets of a model; raises where there is none, or where this process is one of several."""
    if services.settings.has_siblings:
        text = "With --workers, thresholds are set by flags: this process can't change those of the others."
        raise ApiError(409, text, code="not_alone")
    sets = services.pool.sets()
    if own := [models for models in sets if models.name == model]:
        return own
    raise model_not_found(model, [models.name for models in sets])


async def _read(services: Services, request: Request) -> BusyThresholdRequest:
    scope: Any = request.scope
    receive: Any = request.receive
    check_json(scope)
    body = decode(await read_body(scope, receive, min(services.settings.body_limit, LARGEST)))
    asked: BusyThresholdRequest = openai.convert(body, BusyThresholdRequest)
    return asked
