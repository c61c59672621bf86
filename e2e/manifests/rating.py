"""kube-score on manifests, less the verdicts that are wrong for us: `criticals`; each exemption has its reason."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

KUBERNETES = "v1.34"
CRITICAL = 1


class Exemption(NamedTuple):
    """A check that doesn't hold for us."""

    check: str
    objects: str
    """Names of the objects, as a regular expression."""
    reason: str


class Verdict(NamedTuple):
    """A critical one."""

    check: str
    name: str
    said: str


EXEMPTIONS = (
    Exemption(
        "container-security-context-user-group-id", ".*",
        "no user id is set: OpenShift gives one out of the namespace's range and refuses any other; runAsNonRoot makes "
        "the kubelet refuse root, and the images name a user",
    ),
    Exemption(
        "container-image-pull-policy", ".*",
        "tags are versions and never move, and a cluster that can't reach its registry for a while should start pods",
    ),
    Exemption(
        "container-ephemeral-storage-request-and-limit", ".*",
        "what a pod writes is its model cache, whose size only the user knows; a limit would evict it in mid-download",
    ),
    Exemption(
        "container-resources", ".*",
        "a CPU limit throttles event loops while cores idle, and how much memory a model needs only the user knows "
        "(components[].resources); requests are always set, which a test of its own checks",
    ),
    Exemption(
        "statefulset-has-servicename", ".*",
        "nobody asks for a pod by a name of its own: workers are found through etcd and reached over NATS, the chart's "
        "servers through their Services; the pods of a group, which do ask for rank 0, have a Service",
    ),
)  # fmt: skip


def criticals(program: Path, text: str, exemptions: tuple[Exemption, ...]) -> tuple[list[Verdict], set[Exemption]]:
    """What is critical and not exempted, and the exemptions that were needed."""
    command = [str(program), "score", "--output-format=json", f"--kubernetes-version={KUBERNETES}", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    found, used = [], set[Exemption]()
    for verdict in _verdicts(json.loads(done.stdout)):
        exemption = next((e for e in exemptions if _covers(e, verdict)), None)
        if exemption is None:
            found.append(verdict)
        else:
            used.add(exemption)
    return found, used


def _covers(exemption: Exemption, verdict: Verdict) -> bool:
    return exemption.check == verdict.check and re.fullmatch(exemption.objects, verdict.name) is not None


def _verdicts(rated: list[dict[str, Any]]) -> list[Verdict]:
    return [
        Verdict(check["check"]["id"], one["object_meta"]["name"], _said(check))
        for one in rated
        for check in one["checks"]
        if check["grade"] == CRITICAL and not check["skipped"]
    ]


def _said(check: dict[str, Any]) -> str:
    return "; ".join(f"{c['path']} {c['summary']}".strip() for c in check.get("comments") or [])
