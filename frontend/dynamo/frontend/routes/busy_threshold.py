"""GET and POST /busy_threshold: a model's thresholds while the frontend runs, in the original's words and bodies.

DELETE is ours: back to what the flags say. All of it is this process's own, until it ends.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from dynamo.frontend import openai
from dynamo.frontend.admission import Thresholds
from dynamo.frontend.errors import ApiError, model_not_found
from dynamo.frontend.model_set import ModelSet
from dynamo.frontend.requests import check_json, read_body
from dynamo.frontend.routes.replies import json_reply
from dynamo.frontend.services import Services

_FIELDS = Thresholds.__struct_fields__
_ELSEWHERE: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "origin"})
"""Headers of a proxy on this machine, and of a browser on it: both speak for somebody else."""


class BusyThresholdRequest(Thresholds, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model, and the thresholds to set; without any, they are only asked for. Null leaves one as it is."""

    model: str


def busy_router(services: Services) -> APIRouter:
    """The routes; none where the settings say so."""
    router = APIRouter(tags=["system"])
    if not services.policy.admin_api:
        return router
    gates = services.pool.gates

    @router.get("/busy_threshold")
    async def list_thresholds() -> Response:
        """List the thresholds of models that have some."""
        names = {one.name: None for one in services.pool.sets()}
        found = {name: gates.of(name) for name in names}
        return json_reply({"thresholds": [_body(name, one) for name, one in found.items() if one.any]})

    @router.post("/busy_threshold", openapi_extra={"requestBody": _described()})
    async def set_thresholds(request: Request) -> Response:
        """Set thresholds of a model, or ask for them."""
        asked = await _read(services, request)
        changes = {name: value for name in _FIELDS if (value := getattr(asked, name)) is not None}
        if not changes:
            return json_reply(_body(asked.model, gates.of(asked.model)))
        _permit(services, request)
        sets = _changeable(services, asked.model)
        return json_reply(_body(asked.model, gates.change(asked.model, sets, changes)))

    @router.delete("/busy_threshold/{model_id:path}")
    async def reset_thresholds(model_id: str, request: Request) -> Response:
        """Take back what was set for a model: the flags hold again."""
        _permit(services, request)
        return json_reply(_body(model_id, gates.reset(model_id, _changeable(services, model_id))))

    return router


def _described() -> dict[str, Any]:
    _, components = msgspec.json.schema_components([BusyThresholdRequest])
    schema = components[BusyThresholdRequest.__name__]
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _body(model: str, thresholds: Thresholds) -> dict[str, Any]:
    return {"model": model, **{name: getattr(thresholds, name) for name in _FIELDS}}


def _permit(services: Services, request: Request) -> None:
    """A threshold of 0 refuses everybody, so whoever may ask for tokens may not set it; raises the 403."""
    if services.policy.open_admin_api:
        return
    client = request.client
    if client is not None and (not _is_loopback(client.host) or not _ELSEWHERE.isdisjoint(request.headers.keys())):
        where = "the frontend's own machine (kubectl port-forward counts), by no web page"
        raise ApiError(403, f"Thresholds are changed from {where}, or with --open-admin-api.", code="not_local")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a UNIX socket has no address; it is on this machine
        return True


def _changeable(services: Services, model: str) -> list[ModelSet]:
    """The sets of a model; raises where there is none, or where this process is one of several."""
    if services.policy.has_siblings:
        text = "With --workers, thresholds are set by flags: this process can't change those of the others."
        raise ApiError(409, text, code="not_alone")
    sets = services.pool.sets()
    if found := [one for one in sets if one.name == model]:
        return found
    raise model_not_found(model, [one.name for one in sets])


async def _read(services: Services, request: Request) -> BusyThresholdRequest:
    scope: Any = request.scope
    receive: Any = request.receive
    check_json(scope)
    body = openai.decode(await read_body(scope, receive, services.policy.body_limit))
    found: BusyThresholdRequest = openai.convert(body, BusyThresholdRequest)
    return found
