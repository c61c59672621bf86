"""Alerts and dashboards: what they ask for exists, and whoever is called finds what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from docs.generate.api.metrics_page import programs
from docs.generate.cluster.dashboards import DASHBOARDS, FOLDER, render
from tests.charts.documents import PLATFORM, ROOT

RUNBOOKS = ROOT / "docs/how-to/operate/runbooks/alerts.md"
ENDS = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
OF_PROMETHEUS = {"up"}
"""What Prometheus makes itself."""
WORDS = re.compile(r"\{[^}]*\}|\"[^\"]*\"|\b(?:by|on|without)\s*\([^)]*\)|\[[^\]]*\]")
"""What of a query is no name of a metric: matchers, texts, labels, windows."""


def _alerts() -> list[dict[str, Any]]:
    return list(yaml.safe_load((PLATFORM / "files/alerts.yaml").read_text()))


def _queries() -> Iterator[tuple[str, str]]:
    for rule in _alerts():
        yield rule["alert"], rule["expr"]
    for dashboard in DASHBOARDS.values():
        for panel in dashboard.panels:
            for query in panel.queries:
                yield f"{dashboard.title}: {panel.title}", query.expr


def _series() -> set[str]:
    """Names of series of the metrics reference's source."""
    described = [metric for _, metrics in programs().values() for metric in metrics]
    return OF_PROMETHEUS | {f"{metric.name}{end}" for metric in described for end in ENDS[metric.kind]}


@pytest.mark.parametrize("where", [where for where, _ in _queries()])
def test_a_query_asks_for_metrics_that_exist(where: str) -> None:
    """A renamed metric must not leave an alert that never fires, nor a panel that stays empty."""
    names = {
        name for place, query in _queries() if place == where
        for name in re.findall(r"[a-z][a-z_:0-9]*\b(?!\s*\()", WORDS.sub(" ", query)) if "_" in name or name == "up"
    }  # fmt: skip
    names -= {"group_left", "histogram_quantile"}
    assert names
    assert names <= _series()


def test_twenty_alerts_each_say_what_to_do() -> None:
    """Whoever is woken gets a command, and a page."""
    alerts = _alerts()
    assert len({rule["alert"] for rule in alerts}) == len(alerts) >= 20
    for rule in alerts:
        assert "kubectl" in rule["annotations"]["description"]
        assert rule["annotations"]["runbook_url"] == f"RUNBOOKS#{rule['alert'].lower()}"


def test_each_alert_has_a_runbook() -> None:
    """A section by its name: what it means, how to look, what to do."""
    sections = dict(re.findall(r"^## (Dynamo\w+)\n(.*?)(?=^## )", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL))
    assert list(sections) == [rule["alert"] for rule in _alerts()]
    assert [name for name, text in sections.items() if re.findall(r"\*(\w+):\*", text) != ["Means", "Look", "Do"]] == []


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_dashboards_are_made(uid: str) -> None:
    """`make generate` writes them; panels have ids of their own, a unit, and queries with legends."""
    assert (FOLDER / f"{uid}.json").read_text() == render(uid)
    board = json.loads(render(uid))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(board["panels"])
    for panel in board["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"]
        assert all("{{" in target["legendFormat"] or target["legendFormat"] for target in panel["targets"])


def test_no_other_dashboard_lies_there() -> None:
    """The chart takes all files of the folder."""
    assert {path.stem for path in FOLDER.iterdir()} == set(DASHBOARDS)
