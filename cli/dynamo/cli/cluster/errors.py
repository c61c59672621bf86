"""What can be wrong between a user and a cluster, each as one sentence with the next step. Pure.

`RefusedError` is an answer of the API server; `ClusterError` everything that keeps a command from one.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from dynamo.operator.kube.resources import PIPELINES

INSTALL_HINT = "install the platform first: dynamo install"
_MANAGER = re.compile(r'conflict with "(?P<manager>[^"]+)"')


class ClusterError(click.ClickException):
    """One sentence for the user; exit code 1."""


class TooDeepError(ClusterError):
    """An answer with an object that is nested too deep for Python, as anybody may store one."""


class Cause(NamedTuple):
    """One of several things that an answer complains about."""

    reason: str
    field: str
    message: str


class RefusedError(ClusterError):
    """An answer with a status of 400 or more."""

    def __init__(self, status: int, answer: Mapping[str, Any], path: str, context: str) -> None:
        details = answer.get("details") or {}
        self.status = status
        self.reason = str(answer.get("reason") or "")
        self.said = str(answer.get("message") or "")
        self.kind = str(details.get("kind") or "")
        self.name = str(details.get("name") or "")
        self.path = path
        self.causes = tuple(
            Cause(str(c.get("reason") or ""), str(c.get("field") or "").lstrip("."), str(c.get("message") or ""))
            for c in details.get("causes") or []
        )
        super().__init__(sentence(self, context))

    @property
    def crd_missing(self) -> bool:
        """Tell whether the server doesn't know our kind at all."""
        return self.status == 404 and not self.name and f"/{PIPELINES.plural}" in self.path


def parse_answer(body: bytes) -> dict[str, Any]:
    """Make a Status object out of what came, whatever it was."""
    try:
        decoded = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace").strip()[:500]}
    return decoded if isinstance(decoded, dict) else {"message": str(decoded)}


def sentence(refusal: RefusedError, context: str) -> str:
    """Return what an answer means for the user."""
    said = refusal.said or refusal.reason or f"status {refusal.status}"
    if refusal.crd_missing:
        return f"{context} doesn't know {PIPELINES.kind}: {INSTALL_HINT}"
    match refusal.status:
        case 401:
            return (
                f"{context} doesn't accept your credentials: sign in again, or choose another context "
                "with --context (kubectl config get-contexts lists them)"
            )
        case 403:
            return f"{context} doesn't allow it: {said}. Ask for the right, or use another --namespace or --context"
        case 404 if refusal.kind == "namespaces":
            return no_namespace(refusal.name)
        case 409 if conflicts(refusal.causes):
            return conflict_sentence(refusal.causes)
        case 422 if refusal.causes:
            return "; ".join(problem_lines(refusal.causes))
        case 429 | 500 | 502 | 503 | 504:
            return f"{context} answered {refusal.status}: {said}. Try again"
    return f"{context} answered: {said}"


def problem_lines(causes: Iterable[Cause]) -> list[str]:
    """Return `field: message` of a refused object; what the server says twice stands once."""
    return list(dict.fromkeys(f"{c.field}: {c.message}" if c.field else c.message for c in causes))


def conflicts(causes: Iterable[Cause]) -> dict[str, list[str]]:
    """Return who holds which fields that we wanted to set."""
    by_manager: dict[str, list[str]] = {}
    for cause in causes:
        match = _MANAGER.search(cause.message)
        if cause.reason == "FieldManagerConflict" and match:
            by_manager.setdefault(match["manager"], []).append(cause.field)
    return by_manager


def conflict_sentence(causes: Iterable[Cause]) -> str:
    """Name the other manager and its fields, and both ways out."""
    held = "; ".join(f"{manager} owns {', '.join(fields)}" for manager, fields in conflicts(causes).items())
    return (
        f"others own fields that the file sets otherwise: {held}. "
        "Take these fields out of the file, or take them over with --force-conflicts"
    )


def no_kubeconfig(looked: Sequence[object]) -> str:
    """Say that there is nowhere a cluster."""
    places = ", ".join(map(str, looked))
    return (
        f"there is no kubeconfig ({places}): make a cluster (for example `kind create cluster`), or name its file "
        "with --kubeconfig or KUBECONFIG"
    )


def no_context(wanted: str | None, known: Sequence[str]) -> str:
    """Say that a context isn't there, or that none is in use."""
    listed = ", ".join(known) or "it has none at all"
    if not wanted:
        return f"the kubeconfig has no context in use: choose one with --context ({listed})"
    close = difflib.get_close_matches(wanted, known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"it has {listed}" if known else listed
    return f"the kubeconfig has no context {wanted!r}: {hint}"


def unreachable(context: str, server: str, cause: str) -> str:
    """Say that nobody answers, or the wrong one does."""
    return f"{context} can't be reached at {server}: {cause}. Is the cluster up, and is this the right context?"


def no_pipeline(name: str, namespace: str, known: Iterable[str], elsewhere: Iterable[str]) -> str:
    """Say that a name means nothing in a namespace."""
    others, near = sorted(elsewhere), difflib.get_close_matches(name, sorted(known), n=1)
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        hint = f"there is one in {listed}: add -n {others[0]}"
    elif near:
        hint = f"did you mean {near[0]}?"
    else:
        hint = "dynamo status -A lists what there is"
    return f"there is no pipeline {name} in namespace {namespace}: {hint}"


def no_namespace(name: str) -> str:
    """Say that a namespace isn't there."""
    return f"there is no namespace {name}: kubectl create namespace {name}"


def plain_cause(error: BaseException) -> str:
    """Return the innermost reason of a failed connection, in words."""
    seen = str(getattr(error, "reason", None) or error)
    for pattern, words in _CAUSES:
        if re.search(pattern, seen, re.IGNORECASE):
            return words
    return re.sub(r"<[^>]*>|\([^)]*object at 0x[^)]*\):?", "", seen).strip(" :") or type(error).__name__


_CAUSES = (
    (r"connection refused", "connection refused"),
    (r"name or service not known|failed to resolve|nodename nor servname|temporary failure in name", "unknown host"),
    (r"timed out|timeout", "no answer in time"),
    (r"no route to host|network is unreachable", "no route to it"),
    (r"certificate.verify.failed|self.signed certificate", "its certificate isn't of the kubeconfig's authority"),
    (r"wrong version number|http request to an https|plain http", "it doesn't speak TLS there"),
    (r"connection reset|remote end closed|connection aborted|eof occurred", "it closed the connection"),
)
