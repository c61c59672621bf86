"""Spans as OpenTelemetry's Collector prints them (debug exporter, detailed). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_ATTRIBUTE: Final = re.compile(r"^ +-> (?P<name>[\w.]+): Str\((?P<value>.*)\)$")
_FIELD: Final = re.compile(r"^ +(?P<name>Trace ID|Parent ID|ID|Name|Status code) +: (?P<value>.*)$")


class Span(NamedTuple):
    """One that came to the collector."""

    trace: str
    parent: str
    id: str
    name: str
    status: str
    resource: dict[str, str]

    @property
    def service(self) -> str:
        """Who made it."""
        return self.resource.get("service.name", "")


def settings(host: str, grpc: int, http: int) -> str:
    """A collector's settings as YAML: it takes OTLP on both ports, and prints whole spans."""
    protocols = {"grpc": {"endpoint": f"{host}:{grpc}"}, "http": {"endpoint": f"{host}:{http}"}}
    return json.dumps(
        {
            "receivers": {"otlp": {"protocols": protocols}},
            "exporters": {"debug": {"verbosity": "detailed", "use_internal_logger": False}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }
    )


def spans_in(text: str) -> list[Span]:
    """All spans of what a collector printed."""
    return list(_spans(text.splitlines()))


def tree(spans: list[Span], trace: str) -> dict[str, tuple[str, str]]:
    """Spans of one trace by name: their service, and the name (else the id) of the span that they are below."""
    own = [span for span in spans if span.trace == trace]
    names = {span.id: span.name for span in own}
    return {span.name: (span.service, names.get(span.parent, span.parent)) for span in own}


def _spans(lines: list[str]) -> Iterator[Span]:
    resource: dict[str, str] = {}
    fields: dict[str, str] = {}
    in_resource = False
    for line in lines:
        if "Resource attributes:" in line:
            resource, in_resource = {}, True
        elif line.startswith("ScopeSpans"):
            in_resource = False
        elif in_resource and (found := _ATTRIBUTE.match(line)):
            resource[found["name"]] = found["value"]
        elif found := _FIELD.match(line):
            fields[found["name"]] = found["value"].strip()
            if found["name"] == "Status code":
                yield Span(
                    trace=fields["Trace ID"], parent=fields["Parent ID"], id=fields["ID"], name=fields["Name"],
                    status=fields["Status code"], resource=resource,
                )  # fmt: skip
