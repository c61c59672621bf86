"""`metrics.prometheusRule.alerts`: thresholds, waits and severities of a user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e.charts.helm import Helm, RefusedError, of_kind
from tests.charts.documents import PLATFORM

ON = "metrics__prometheusRule__enabled"
ALERTS = "metrics__prometheusRule__alerts__"


def _rules(helm: Helm, folder: Path, **alerts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    values = folder / f"{len([*folder.iterdir()])}.yaml"  # helm's answers are kept by a file's name
    values.write_text(yaml.safe_dump({"metrics": {"prometheusRule": {"enabled": True, "alerts": alerts}}}))
    (rule,) = of_kind(helm.render(PLATFORM, values), "PrometheusRule").values()
    return {alert["alert"]: alert for alert in rule["spec"]["groups"][0]["rules"]}


def test_as_the_file_has_them(helm: Helm, tmp_path: Path) -> None:
    """All twenty, but for the address of runbooks that nobody gave."""
    written = yaml.safe_load((PLATFORM / "files/alerts.yaml").read_text())
    for alert in written:
        del alert["annotations"]["runbook_url"]
        alert["expr"] = alert["expr"].rstrip()
    rules = [{**rule, "expr": rule["expr"].rstrip()} for rule in _rules(helm, tmp_path).values()]
    assert rules == written


def test_every_threshold_can_be_another(helm: Helm, tmp_path: Path) -> None:
    """The number at the end of a query, and nothing else of it; two compare with none."""
    before = _rules(helm, tmp_path)
    counted = [name for name, rule in before.items() if re.search(r"> [0-9.]+\s*$", rule["expr"])]
    assert {*before} - {*counted} == {
        "DynamoModelNotServed", "DynamoFrontendDown", "DynamoWorkerDown", "DynamoOperatorNoLeader",
    }  # fmt: skip
    after = _rules(helm, tmp_path, **{name: {"threshold": 0.125} for name in counted})
    for name in counted:
        assert after[name]["expr"].rstrip().endswith("> 0.125")
        assert after[name]["expr"].rstrip().rpartition(" ")[0] == before[name]["expr"].rstrip().rpartition(" ")[0]


def test_waits_severities_and_alerts_that_nobody_wants(helm: Helm, tmp_path: Path) -> None:
    """The others stay as they are."""
    before = _rules(helm, tmp_path)
    slow = {"threshold": 10, "for": "20m", "severity": "critical"}
    after = _rules(helm, tmp_path, DynamoFirstTokenSlow=slow, DynamoWorkerDown={"enabled": False})
    assert {*before} - {*after} == {"DynamoWorkerDown"}
    changed = after.pop("DynamoFirstTokenSlow")
    assert (changed["for"], changed["labels"]["severity"], changed["expr"][-4:]) == ("20m", "critical", "> 10")
    assert all(rule == before[name] for name, rule in after.items())


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({f"{ALERTS}DynamoSlow__for": "1m"}, "alerts.DynamoSlow: there is no such alert. Use one of DynamoApiServerE"),
        ({f"{ALERTS}DynamoWorkerDown__threshold": "1"}, "threshold: this alert compares with no number. Remove it"),
        ({f"{ALERTS}DynamoWorkerDown__treshold": "1"}, "'treshold' not allowed"),
        ({f"{ALERTS}DynamoWorkerDown__for": "soon"}, "does not match pattern"),
        ({f"{ALERTS}DynamoFirstTokenSlow__threshold": "much"}, "got string, want number"),
    ],
)
def test_what_can_not_be_wanted(value: dict[str, str], sentence: str, helm: Helm) -> None:
    """Refused by name, before anything is installed."""
    with pytest.raises(RefusedError, match=re.escape(sentence)):
        helm.render(PLATFORM, None, **{ON: "true", **value})
