"""What stands in a cluster before an installation, and how far one is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynamo.cli.cluster.pipelines.progress import Part, PipelinePhase, PipelineProgress, waiting_text
from dynamo.cli.cluster.platform.values import value_at
from dynamo.operator.cluster.observe import deployment_facts

Live = Mapping[str, Any]
CRD: Final = "dynamopipelines.dynamo.dev"
RELEASE_NAME: Final = "meta.helm.sh/release-name"
RELEASE_NAMESPACE: Final = "meta.helm.sh/release-namespace"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
WORKLOADS: Final = ("Deployment", "StatefulSet")


class ReleaseName(NamedTuple):
    """A release's name and namespace."""

    release: str
    namespace: str


def owner(crd: Live) -> ReleaseName | None:
    """Return the release that helm takes an object for a part of; None where it was applied by other means."""
    metadata = crd["metadata"]
    annotations = metadata.get("annotations") or {}
    managed = (metadata.get("labels") or {}).get(MANAGED_BY) == "Helm"
    if not managed or RELEASE_NAME not in annotations or RELEASE_NAMESPACE not in annotations:
        return None
    return ReleaseName(annotations[RELEASE_NAME], annotations[RELEASE_NAMESPACE])


def adoption(place: ReleaseName) -> dict[str, Any]:
    """Return a merge patch by which helm takes an object for a part of this release."""
    annotations = {RELEASE_NAME: place.release, RELEASE_NAMESPACE: place.namespace}
    return {"metadata": {"labels": {MANAGED_BY: "Helm"}, "annotations": annotations}}


def too_old(server: str, wanted: str) -> bool:
    """Tell whether `v1.29.4` is below a chart's `>=1.30.0-0`; what can't be read is helm's to judge."""
    have = re.match(r"v?(\d+)\.(\d+)", server)
    need = re.fullmatch(r">=\s*v?(\d+)\.(\d+)(?:\.\d+)?(?:-0)?", wanted.strip())
    if not have or not need:
        return False
    return (int(have[1]), int(have[2])) < (int(need[1]), int(need[2]))


def workload_part(wanted: Live, live: Live | None, pods: Iterable[Live]) -> Part:
    """Return how far one Deployment or StatefulSet is, and which pod waits for what."""
    name = str(wanted["metadata"]["name"])
    if live is None:
        return Part(name, False, "isn't there yet")
    facts = deployment_facts(live)
    updated = facts.updated if facts.updated or facts.wanted == 0 else _updated(live)
    done = facts.seen and facts.ready >= facts.wanted and updated >= facts.wanted and facts.total <= facts.wanted
    text = f"{min(facts.ready, facts.wanted)} of {facts.wanted} ready"
    if done:
        return Part(name, True, text)
    waits = next(filter(None, map(waiting_text, sorted(pods, key=_name))), "")
    return Part(name, False, f"{text}; {waits}" if waits else text)


def _updated(live: Live) -> int:
    """Return the count of updated pods; a StatefulSet whose pods are all of one revision may leave it out."""
    status = live.get("status") or {}
    same = status.get("currentRevision") == status.get("updateRevision")
    return int(status.get("readyReplicas", 0)) if live.get("kind") == "StatefulSet" and same else 0


def _name(pod: Live) -> str:
    return str(pod["metadata"]["name"])


def platform_progress(place: ReleaseName, parts: Sequence[Part]) -> PipelineProgress:
    """Put all workloads of the release together."""
    waiting = [part for part in parts if not part.done]
    phase = PipelinePhase.WAITING if waiting else PipelinePhase.READY
    message = "; ".join(f"{part.name}: {part.text}" for part in waiting)
    return PipelineProgress(place.release, place.namespace, phase, "Starting" if waiting else "", message, tuple(parts))


def warnings(notes: str) -> list[str]:
    """Return the paragraphs of the chart's notes that warn."""
    paragraphs = re.split(r"\n\s*\n", notes)
    return [" ".join(text.split()) for text in paragraphs if text.lstrip().startswith("WARNING")]


def selector(workload: Live) -> str:
    """Return the query for its pods."""
    labels = ((workload.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


FIRST_PIPELINE: Final = """\
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata:
  name: mocker
spec:
  components:
    - engine: mocker
"""


def next_command(flags: str, namespace: str | None) -> str:
    """Return the command that makes a first pipeline, to paste."""
    place = f" -n {namespace}" if namespace else ""
    return f"dynamo apply{place}{flags} --wait - <<'EOF'\n{FIRST_PIPELINE}EOF"


def what_stays(kept_crd: bool, pipelines: Sequence[Live], claims: Sequence[Live]) -> list[str]:
    """Return what an uninstallation leaves in the cluster, and what that means."""
    lines = []
    if pipelines:
        names = [f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in pipelines]
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(
            f"{count(len(pipelines), 'pipeline')} ({listed}) and their pods: nobody looks after them any more, and "
            "if etcd and NATS were this release's, they stop serving"
        )
    if kept_crd:
        lines.append(f"the CustomResourceDefinition {CRD}: dynamo uninstall --crds removes it, with every pipeline")
    if claims:
        names = [str(claim["metadata"]["name"]) for claim in claims]
        lines.append(f"{count(len(names), 'claim')} with etcd's data: kubectl delete pvc {' '.join(names)}")
    return lines


def count(number: int, what: str) -> str:
    """Return `1 pipeline`, `2 pipelines`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def new_sign_in(before: Mapping[str, Any], values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return why an upgrade waits for the user's word: it would turn sign-in on, unasked. Empty where it wouldn't."""
    servers = [
        server
        for server in ("etcd", "nats")
        if _signs_in(before, server) is False
        and _signs_in(values, server) is None
        and _signs_in(defaults, server) is True
    ]
    if not servers:
        return ""
    choice = " ".join(f"--set {server}.auth.enabled=true" for server in servers)
    return (
        f"{' and '.join(servers)} of this installation ask for no sign-in, so every pod that reaches them can read and "
        "answer all requests; this version asks for it by default. Turning it on replaces the pods of all pipelines, "
        f"and requests fail for a minute or two. Say {choice} when that suits you, or =false to leave it as it is"
    )


def _signs_in(values: Mapping[str, Any], server: str) -> bool | None:
    """Tell whether sign-in is on; None where the values don't say."""
    setting = value_at(values, server, "auth", "enabled")
    return setting if isinstance(setting, bool) else None
