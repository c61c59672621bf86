"""Traces from the frontend to the engine, as a collector gets them: real processes, OTLP over HTTP and gRPC."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.environments import quick_environment
from tests.processes import RUN, Process
from tests.waiting import eventually

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ENGINE = """
import logging
async def generate(request, context):
    logging.getLogger("dynamo.mine").info("traced %s", context.metadata.get("traceparent"))
    for token in b"tokens":
        yield {"token_ids": [token]}
    if request["stop_conditions"]["max_tokens"] == 13:
        raise RuntimeError("unlucky")
"""
pytestmark = pytest.mark.processes


class Spans:
    """What came: spans with the name of their service."""

    protocol = ""
    url = ""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            named = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [(named["service.name"], span) for span in scope.spans]

    def tree(self, trace: str) -> dict[str, tuple[str, str]]:
        """Spans of one trace by name: their service, and the name of the span that they are below."""
        own = [(service, span) for service, span in self.spans if span.trace_id.hex() == trace]
        names = {span.span_id: span.name for _, span in own}
        return {s.name: (service, names.get(s.parent_span_id, s.parent_span_id.hex())) for service, s in own}

    def close(self) -> None:
        """End what listens."""


class GrpcCollector(Spans):
    """OTLP over gRPC, by OpenTelemetry's own service."""

    protocol = "grpc"

    def __init__(self) -> None:
        super().__init__()
        collector = self

        class Service(TraceServiceServicer):
            def Export(self, request: ExportTraceServiceRequest, context: object) -> ExportTraceServiceResponse:
                collector.take(request)
                return ExportTraceServiceResponse()

        self._server = grpc.server(ThreadPoolExecutor(2))
        add_TraceServiceServicer_to_server(Service(), self._server)  # type: ignore[no-untyped-call]
        self.url = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait(10)


class HttpCollector(Spans):
    """OTLP over HTTP: what `POST /v1/traces` brings."""

    protocol = "http/protobuf"

    def __init__(self) -> None:
        super().__init__()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.headers["content-type"] == "application/x-protobuf"
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@pytest.fixture(params=[HttpCollector, GrpcCollector])
def collector(request: pytest.FixtureRequest) -> Iterator[Spans]:
    made: Spans = request.param()
    yield made
    made.close()


def traced(collector: Spans, env: dict[str, str]) -> dict[str, str]:
    more = {"OTEL_EXPORT_ENABLED": "1", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    return {**env, **more, "OTEL_EXPORTER_OTLP_PROTOCOL": collector.protocol, "DYN_LOGGING_JSONL": "1"}


@pytest.mark.servers
@pytest.mark.timeout(180)
def test_one_trace_over_two_processes(servers: dict[str, str], collector: Spans, tmp_path: Path) -> None:
    """The client's traceparent, the frontend's stages, the worker's below the route; log lines carry the ids."""
    (tmp_path / "mine.py").write_text(ENGINE)
    env = traced(collector, servers)
    worker = [*RUN, "in=dyn://ns.backend.generate", f"out=pytok:{tmp_path / 'mine.py'}"]
    front = [*RUN, "in=http", "out=dyn", "--http-port", "0"]
    with (
        Process("worker", worker, tmp_path, env) as serving,
        Process("front", front, tmp_path, env) as asking,
    ):
        url = f"{asking.ready_line()['url']}/v1"
        serving.ready_line()
        with httpx.Client(headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}, timeout=30) as client:
            eventually("the model is listed", lambda: client.get(f"{url}/models").json()["data"], 60)
            answer = client.post(f"{url}/completions", json={"model": "mine", "prompt": "hi"})
            assert answer.json()["choices"][0]["text"] == "tokens"
            eventually("the trace is whole", lambda: len(collector.tree(TRACE)) == 6)
            assert collector.tree(TRACE) == {
                "http-request": ("dynamo-frontend", PARENT),
                "preprocess": ("dynamo-frontend", "http-request"),
                "route": ("dynamo-frontend", "http-request"),
                "handle_payload": ("dynamo-worker", "route"),
                "queue": ("dynamo-worker", "handle_payload"),
                "engine": ("dynamo-worker", "handle_payload"),
            }
            (asked,) = [span for _, span in collector.spans if span.name == "http-request"]
            said = {attribute.key: attribute.value for attribute in asked.attributes}
            assert said["http.response.status_code"].int_value == 200
            assert said["x_request_id"].string_value == answer.headers["x-request-id"]
            assert [event.name for event in asked.events] == ["first_token"]
            assert client.post(f"{url}/completions", json={"model": "mine", "prompt": "hi", "max_tokens": 13}).is_error
            eventually("both have failed", lambda: sum(s.status.code == 2 for _, s in collector.spans) >= 3)
        lines = [json.loads(line) for line in serving.text().splitlines() if line.startswith("{")]
        (line, *_) = [line for line in lines if line["message"].startswith("traced ")]
        (span,) = [s for _, s in collector.spans if s.name == "handle_payload" and not s.status.code]
        assert (line["trace_id"], line["span_id"]) == (TRACE, span.span_id.hex())
        assert re.fullmatch(f"traced 00-{TRACE}-{line['span_id']}-01", line["message"])
        assert (serving.stop(60), asking.stop(60)) == (0, 0)


def test_a_collector_that_is_away_holds_up_nobody(tmp_path: Path) -> None:
    """Requests are answered, and the process ends in time."""
    env = quick_environment(tmp_path, OTEL_EXPORT_ENABLED="1", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    argv = [*RUN, "in=http", "out=echo_full", "--http-port", "0", "--model-name", "echo"]
    with Process("server", argv, tmp_path, env) as server:
        url = server.ready_line()["url"]
        answer = httpx.post(f"{url}/v1/completions", json={"model": "echo", "prompt": "hi"}, timeout=30)
        assert answer.json()["choices"][0]["text"] == "hi"
        assert server.stop(60) == 0
