"""What a request says of its own routing: which worker, which session, how to weigh, what to tell. Pure.

The names are NVIDIA Dynamo's, of its fields in `nvext` and of its headers; a header wins. A request that says nothing
has `NO_HINTS`.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dynamo.frontend.errors import bad_request
from dynamo.frontend.http.requests import Scope, header, headers_of
from dynamo.frontend.openai.nvext import Nvext, RouterConfigOverride

SESSION_HEADERS: Final = (
    "x-dynamo-session-id", "x-claude-code-agent-id", "x-claude-code-session-id", "session-id", "x-session-id",
)  # fmt: skip
"""The first that is there counts; all but NVIDIA Dynamo's own are those of agents."""
SESSION_FINAL: Final = b"x-dynamo-session-final"
WORKER_HEADERS: Final = ("x-dynamo-worker-instance-id", "x-worker-instance-id")
PREFILL_HEADERS: Final = ("x-dynamo-prefill-instance-id", "x-prefill-instance-id")
RANK_HEADERS: Final = ("x-dynamo-dp-rank", "x-dp-rank", "x-data-parallel-rank")
PREFILL_RANK_HEADERS: Final = ("x-dynamo-prefill-dp-rank", "x-prefill-dp-rank")
PRIORITY: Final = "x-dynamo-request-priority"
STRICT_PRIORITY: Final = "x-dynamo-request-strict-priority"
_ROUTING: Final = frozenset(
    name.encode()
    for name in (
        *WORKER_HEADERS, *PREFILL_HEADERS, *RANK_HEADERS, *PREFILL_RANK_HEADERS, PRIORITY, STRICT_PRIORITY,
    )
)  # fmt: skip
_QUERY: Final = "query_instance_id"
_WHOLE: Final = re.compile(rb"-?[0-9]{1,10}")
_SESSION: Final = re.compile(rb"[\x21-\x7e][\x20-\x7e]{0,255}")
_MAX_ID: Final = 2**53


class Hints(msgspec.Struct):
    """Hints of one request."""

    instance: int | None = None
    """The worker that it must go to."""
    pinned_by: str = ""
    """The field or header that says so."""
    dp_rank: int | None = None
    """The data-parallel rank that it must go to."""
    rank_by: str = ""
    """The field or header that says so."""
    prefill_instance: int | None = None
    """The prefill worker that its prompt must go to."""
    prefill_by: str = ""
    prefill_rank: int | None = None
    prefill_rank_by: str = ""
    one_worker: bool = False
    """Its prompt must not go to another worker than its answer comes from."""
    session: str = ""
    closes: bool = False
    """It is the last of its session."""
    weights: RouterConfigOverride | None = None
    priority: int = 0
    strict_priority: int = 0
    asks: bool = False
    """It is not to be sent, only to be told where it would go."""
    tells: frozenset[str] = frozenset()
    """What its answer should say of routing."""


NO_HINTS: Final = Hints()


def read_hints(scope: Scope, nvext: Nvext | None, sessions: bool) -> Hints:
    """Read the hints of a request; `sessions`: sessions mean something here.

    Raises the 400 that names what is wrong.
    """
    routing = not _ROUTING.isdisjoint(headers_of(scope))
    if nvext is None and not routing and not sessions:
        return NO_HINTS
    hints = Hints()
    if nvext is not None:
        _from_nvext(hints, nvext)
    if routing:
        _from_headers(hints, scope)
    if sessions:
        _session(hints, scope, nvext)
    return NO_HINTS if hints == NO_HINTS else hints


def _from_nvext(hints: Hints, nvext: Nvext) -> None:
    _refuse_unserved(nvext)
    _prefill(hints, "nvext.prefill_worker_id", nvext.prefill_worker_id)
    _prefill_rank(hints, "nvext.prefill_dp_rank", nvext.prefill_dp_rank)
    if nvext.dp_rank is not None:
        hints.dp_rank, hints.rank_by = nvext.dp_rank, "nvext.dp_rank"
    _pin(hints, "nvext.backend_instance_id", nvext.backend_instance_id)
    _pin(hints, "nvext.decode_worker_id", nvext.decode_worker_id)
    if nvext.agent_hints is not None:
        hints.priority = nvext.agent_hints.priority or 0
        hints.strict_priority = nvext.agent_hints.strict_priority or 0
    hints.weights = nvext.router_config_override
    hints.asks = any(annotation.startswith(_QUERY) for annotation in nvext.annotations or ())
    hints.tells = frozenset(nvext.extra_fields or ())


def _refuse_unserved(nvext: Nvext) -> None:
    """Raise the 400 of a field that no worker here can keep to: ignored, it would look as if it were kept."""
    if (constraints := nvext.routing_constraints) is not None and constraints.required_taints:
        name = "nvext.routing_constraints.required_taints"
        text = f"{name}: not supported; workers here have no taints; use backend_instance_id."
        raise bad_request(text, name, "unsupported_parameter")


def _pin(hints: Hints, field: str, instance: int | None) -> None:
    if instance is None:
        return
    if hints.instance not in (None, instance):
        raise bad_request(f"{field}: {instance} is another worker than {hints.pinned_by} names.", field)
    hints.instance, hints.pinned_by = instance, field


def _from_headers(hints: Hints, scope: Scope) -> None:
    name, instance = _number(scope, WORKER_HEADERS)
    if instance is not None:
        hints.instance, hints.pinned_by = instance, name
    _prefill(hints, *_number(scope, PREFILL_HEADERS))
    _prefill_rank(hints, *_number(scope, PREFILL_RANK_HEADERS))
    name, rank = _number(scope, RANK_HEADERS)
    if rank is not None:
        hints.dp_rank, hints.rank_by = rank, name
    if (given := header(scope, PRIORITY.encode())) is not None:
        hints.priority = _priority(PRIORITY, given, -(2**31), 2**31 - 1)
    if (given := header(scope, STRICT_PRIORITY.encode())) is not None:
        hints.strict_priority = _priority(STRICT_PRIORITY, given, 0, 2**32 - 1)


def _priority(name: str, given: bytes, least: int, most: int) -> int:
    if not _WHOLE.fullmatch(given) or not least <= int(given) <= most:
        raise bad_request(f"{name}: must be a whole number between {least} and {most}.", name)
    return int(given)


def _number(scope: Scope, names: tuple[str, ...]) -> tuple[str, int | None]:
    """Return the first of these headers that is there, and its value."""
    for name in names:
        given = header(scope, name.encode())
        if given is not None:
            if not given.isdigit() or len(given) > 16 or int(given) >= _MAX_ID:
                raise bad_request(f"{name}: must be a number below 2^53, got {given[:40].decode('latin-1')!r}.", name)
            return name, int(given)
    return names[0], None


def _prefill(hints: Hints, field: str, instance: int | None) -> None:
    if instance is not None:
        hints.prefill_instance, hints.prefill_by = instance, field


def _prefill_rank(hints: Hints, field: str, rank: int | None) -> None:
    if rank is not None:
        hints.prefill_rank, hints.prefill_rank_by = rank, field


def _session(hints: Hints, scope: Scope, nvext: Nvext | None) -> None:
    control = None if nvext is None else nvext.session_control
    if control is not None:
        hints.session, hints.closes = control.session_id, control.action == "close"
    for name in SESSION_HEADERS:
        given = header(scope, name.encode())
        if given is not None:
            if not _SESSION.fullmatch(given):
                raise bad_request(f"{name}: must be 1 to 256 printable ASCII characters.", name)
            hints.session = given.decode("ascii")
            break
    if hints.session and (header(scope, SESSION_FINAL) or b"").strip().lower() == b"true":
        hints.closes = True
