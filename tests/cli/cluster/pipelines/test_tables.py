"""Tables, events and log lines of a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from dynamo.cli.cluster.pipelines.events import event_lines
from dynamo.cli.cluster.pipelines.pod_logs import Wanted, parse_line, query, short_name, split_name
from dynamo.cli.cluster.pipelines.progress import Part, PipelinePhase, PipelineProgress
from dynamo.cli.cluster.pipelines.tables import COLUMNS, WIDE, bare, component_rows, detail, rows, since
from dynamo.cli.main import dynamo

CRD = Path(__file__).parents[4] / "crds" / "dynamo.dev_dynamopipelines.yaml"
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def pipeline(observed: int = 1, **status: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "Serving", "message": "m", "observedGeneration": observed}
    return {
        "metadata": {
            "name": "llama", "namespace": "serving", "generation": 1, "creationTimestamp": "2026-11-21T11:57:00Z",
            "managedFields": [{}],
        },
        "spec": {
            "components": [{"engine": "mocker", "tensorParallelSize": 2}, {"engine": "vllm"}, {"engine": "mocker"}],
            "frontend": {"router": {"mode": "kv"}},
        },
        "status": {"observedGeneration": observed, "conditions": [ready], **status},
    }  # fmt: skip


def test_columns_are_those_of_the_crd() -> None:
    """`kubectl get dp` and `dynamo status` show the same."""
    printed = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["additionalPrinterColumns"]
    ordinary = [c["name"].upper() for c in printed if not c.get("priority")]
    wide = [c["name"].upper() for c in printed if c.get("priority")]
    assert ["NAME", *ordinary] == list(COLUMNS)
    assert wide == list(WIDE)


def test_a_row() -> None:
    """Wide and with namespaces."""
    live = pipeline(model="m", workers="1/1", url="http://x")
    head, row = rows([live], NOW, wide=True, namespaces=True)
    assert head == ("NAMESPACE", *COLUMNS, *WIDE)
    assert row == (
        "serving", "llama", "True", "Serving", "m", "mocker,vllm", "1/1", "http://x", "3m", "2,1,1", "kv", "1",
    )  # fmt: skip


def test_an_older_generation_s_ready_is_not_shown() -> None:
    """Where kubectl would show it."""
    row = rows([pipeline(observed=0)], NOW, wide=False, namespaces=False)[1]
    assert row[:3] == ("llama", "Unknown", "Pending")
    assert rows([{"metadata": {"name": "x"}}], NOW, wide=False, namespaces=False)[1][-1] == "-"


def test_ages_are_short() -> None:
    """A clock that differs a little is no error."""
    assert since("2026-11-21T11:59:58Z", NOW) == "2s"
    assert since("2026-11-21T12:00:05Z", NOW) == "0s"
    assert since(None, NOW) == "-"


def test_one_pipeline_closely() -> None:
    """Parts with their revision, and the reason while it isn't ready."""
    live = pipeline(components=[{"name": "w", "revision": "r1"}])
    pipeline_progress = PipelineProgress(
        "llama", "serving", PipelinePhase.WAITING, "Starting", "w: 0 of 1", (Part("w", False, "0 of 1"),)
    )
    assert component_rows(live, pipeline_progress)[1:] == [("w", "waits", "r1", "0 of 1")]
    texts = [block for block in detail(live, pipeline_progress, NOW, wide=False) if isinstance(block, str)]
    assert texts[-1] == "Starting: w: 0 of 1"
    unseen = PipelineProgress("llama", "serving", PipelinePhase.UNSEEN)
    assert "No operator has looked" in str(list(detail(live, unseen, NOW, wide=False))[-1])
    assert component_rows(live, unseen) == []


def test_field_owners_are_not_for_people() -> None:
    """Everything else stays."""
    assert "managedFields" not in bare(pipeline())["metadata"]
    assert bare(pipeline())["spec"] == pipeline()["spec"]


def event(name: str, at: str, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}, "type": "Warning", "reason": "Failed",
        "message": f"at\n {at}", "involvedObject": {"kind": "Pod", "name": name}, **more,
    }  # fmt: skip


def test_events_are_in_order_whoever_wrote_them() -> None:
    """Three writers, three fields for the time; only those of our objects, only the last ones."""
    events = [
        event("a", "3", lastTimestamp="2026-11-21T03:00:00Z", count=4),
        event("a", "2", eventTime="2026-11-21T02:00:00.000000Z"),
        event("b", "1", lastTimestamp="2026-11-21T09:00:00Z"),
        event("a", "4", series={"lastObservedTime": "2026-11-21T04:00:00.000000Z", "count": 2}, eventTime="2020"),
        event("a", "0"),
    ]
    assert event_lines(events, {"a"}, 3) == [
        "Warning Failed pod/a: at 2",
        "Warning Failed pod/a: at 3 (x4)",
        "Warning Failed pod/a: at 4 (x2)",
    ]


def test_log_lines_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    """What a pod wrote can't speak to the terminal, nor look like a line of another pod; nor can its time."""
    raw = b"2026-11-21T10:00:00Z a\x1b[31mb\r\xe2\x80\xa8c\td\n\x1b[2J x\x1b]0;t\x07\n"
    pod = {"metadata": {"name": "llama-worker-0", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}}
    cluster = SimpleNamespace(raw=lambda *asked: raw, namespace="n", items=lambda *asked, **more: [pod])
    with patch("dynamo.cli.cluster.client.connect", lambda target: cluster):
        for flags in ([], ["--timestamps"]):
            dynamo.main(["logs", "llama", "-n", "n", *flags], standalone_mode=False)
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 4
    assert not set(out) & set("\x1b\x07\r\u2028")
    assert "a\\x1b[31mb\\r\\u2028c\td" in out


def test_log_lines_and_names() -> None:
    """Time, pod, text; names without what all share."""
    assert parse_line("w-0", b"2026-11-21T03:00:00Z hello  you\n") == ("2026-11-21T03:00:00Z", "w-0", "hello  you")
    assert split_name("llama/worker") == ("llama", "worker")
    assert short_name("llama", {"metadata": {"name": "llama-worker-1a-0"}}) == "worker-1a-0"


def test_what_the_api_server_is_asked_for() -> None:
    """The first container, and the limits that were said."""
    pod = {"spec": {"containers": [{"name": "worker"}, {"name": "sidecar"}]}}
    wanted = Wanted("llama", NOW, 5, True)
    assert query(wanted, pod, follow=True) == {
        "timestamps": "true", "container": "worker", "follow": "true", "tailLines": "5", "previous": "true",
        "sinceTime": "2026-11-21T12:00:00Z",
    }  # fmt: skip
    assert query(Wanted("llama", None, None, False), pod, follow=False) == {"timestamps": "true", "container": "worker"}
