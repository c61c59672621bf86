"""Tracing where it is off, and what can't be meant; tests/system/test_tracing.py has what a collector gets."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process.logs import JsonLines, Readable
from dynamo.runtime.process.tracing import CURRENT, trace_ids, tracing_from_env

HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_off_by_default() -> None:
    """Unless it is asked for."""
    for env in ({}, {"OTEL_EXPORT_ENABLED": "0"}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}):
        assert tracing_from_env("s", env) is None


def test_nothing_is_imported_while_it_is_off() -> None:
    """Neither by the worker nor by the frontend: not the SDK (libraries may import the bare API)."""
    code = (
        "import sys, dynamo.worker.main, dynamo.frontend.process, dynamo.runtime.process.tracing as t;"
        "t.tracing_from_env('s', {});"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_other_protocols_are_refused() -> None:
    """With those that are there."""
    env = {"OTEL_EXPORT_ENABLED": "1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    with pytest.raises(InvalidArgument, match=r"set http/protobuf .* or grpc"):
        tracing_from_env("s", env)


@pytest.mark.parametrize(("header", "ids"), [(HEADER, tuple(HEADER.split("-")[1:3])), ("", None), ("a-b", None)])
def test_ids(header: str, ids: tuple[str, str] | None) -> None:
    """Of a traceparent, where it is one."""
    assert trace_ids(header) == ids


def test_log_lines_carry_the_ids() -> None:
    """In both forms, while a traced request runs."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    log = logging.Logger("dynamo.x")
    log.addHandler(handler)
    token = CURRENT.set(HEADER)
    handler.setFormatter(JsonLines())
    log.info("a")
    handler.setFormatter(Readable(color=False))
    log.info("b")
    CURRENT.reset(token)
    log.info("c")
    first, second, third = out.getvalue().splitlines()
    assert json.loads(first)["trace_id"] == trace_ids(HEADER)[0]  # type: ignore[index]
    assert second.endswith("b trace_id=4bf92f3577b34da6a3ce929d0e0e4736")
    assert third.endswith(": c")
