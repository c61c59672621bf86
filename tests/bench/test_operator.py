"""The operator's benchmark: what it reads out of an audit log, and how it judges."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from bench.operator.audit import delays, reads, requests, writes
from bench.operator.bare import children
from bench.operator.client import CHILDREN, key_of, mocker
from bench.operator.scenarios import Figure, Sizes

STAMP = "2026-11-21T00:00:{:09.6f}Z"


def line(
    verb: str, resource: str, name: str, at: float, user: str = "op", code: int = 201, sub: str = "", took: float = 0.1
) -> str:
    return json.dumps({
        "stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "responseStatus": {"code": code},
        "requestReceivedTimestamp": STAMP.format(at), "stageTimestamp": STAMP.format(at + took),
        "objectRef": {"resource": resource, "subresource": sub, "namespace": "team-0", "name": name},
    })  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    entries = [
        line("create", "dynamopipelines", "p-00000", 1.0, "user"),
        line("create", "dynamopipelines", "p-00010", 1.0, "user"),
        *(line("patch", "services", f"p-00000-{i}", 2.0 + i) for i in range(3)),
        line("patch", "services", "p-00010-0", 2.0, code=409),
        line("patch", "dynamopipelines", "p-00000", 3.0, code=200, sub="status"),
        line("create", "events", "p-00000.x", 3.0),
        line("update", "leases", "l", 3.0, code=200),
        line("get", "dynamopipelines", "p-00000", 3.0, code=200),
        json.dumps({"stage": "ResponseComplete", "verb": "get", "user": {"username": "op"}, "requestURI": "/readyz"}),
    ]
    path = tmp_path / "audit.log"
    path.write_text("\n".join([*entries, ""]))
    return path


def test_writes_and_reads_are_counted_by_kind(log: Path) -> None:
    """Renewals of a lease are neither; what was refused is its own class."""
    result = requests(log)
    assert writes(result, "op") == {"children": 3, "status": 1, "events": 1, "refused": 1}
    assert reads(result, "op") == {"get": 1}
    since = requests(log, max(entry.begun for entry in result))
    assert [request.name for request in since] == ["p-00000-2"]


def test_a_delay_ends_with_the_last_child(log: Path) -> None:
    """A pipeline that hasn't all of them has none."""
    seconds = delays(requests(log), "op", "user", 3)
    assert seconds == {"team-0/p-00000": pytest.approx(3.1)}


def test_a_pipeline_of_the_benchmark_is_what_the_bars_speak_of() -> None:
    """One frontend and two workers; spread over namespaces, with a name by which its children are found."""
    namespace, body = mocker(17)
    assert (namespace, body["metadata"]["name"]) == ("team-7", "p-00017")
    assert key_of(17) == "team-7/p-00017"
    assert body["spec"]["replicas"] == 2
    made = {**body, "metadata": {**body["metadata"], "namespace": namespace, "uid": "u"}}
    assert len(children(made)) == CHILDREN


def test_a_bar_is_missed_above_it() -> None:
    """Zero is a bar, too."""
    assert not Figure("x", 10.0, "s", 10.0).missed
    assert Figure("x", 1.0, "writes", 0.0).missed
    assert not Figure("x", 1e9, "s").missed
    assert Sizes.scaled(0.1) == Sizes(50, 100, 15)
