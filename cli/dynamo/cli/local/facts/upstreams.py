"""Asks whether somebody listens where engine `openai` sends its requests. A connection each, with a deadline."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from dynamo.cli.diagnosis.file_fields import UpstreamFact

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

SECONDS: Final = 2.0
_MOST: Final = 16
_HTTPS: Final = 443
_HTTP: Final = 80


def upstreams(pipelines: Sequence[DynamoPipeline]) -> tuple[UpstreamFact, ...]:
    """Ask the servers that components name, side by side."""
    named = [
        (component.upstream, f"{component.name} of {pipeline.name}")
        for pipeline in pipelines
        for component in pipeline.spec.components
        if component.upstream
    ][:_MOST]
    with ThreadPoolExecutor(len(named) or 1) as threads:
        errors = threads.map(unreachable, (url for url, _ in named))
        return tuple(UpstreamFact(_shown(url), by, error) for (url, by), error in zip(named, errors, strict=True))


def unreachable(url: str) -> str:
    """Return why nobody can be reached at a URL; empty where somebody listens."""
    parts = urlsplit(url)
    try:
        port = parts.port or (_HTTPS if parts.scheme == "https" else _HTTP)
        socket.create_connection((parts.hostname or "", port), SECONDS).close()
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
