"""Why one pipeline of a cluster isn't Ready: by its conditions, pods and events. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis.findings import Finding


@dataclass(frozen=True)
class PodFact:
    """One pod that doesn't serve, and why."""

    name: str
    reason: str
    message: str = ""


@dataclass(frozen=True)
class PipelineFacts:
    """One pipeline of a cluster."""

    name: str
    namespace: str
    phase: str
    """As `PipelinePhase` has it."""
    reason: str = ""
    message: str = ""
    pods: tuple[PodFact, ...] = ()
    events: tuple[tuple[str, str], ...] = ()
    """Reasons and messages of warnings, youngest last."""


_MENDS: Final = (
    ("image-pull", r"ImagePull|ErrImage|InvalidImageName|pull image", "an image can't be pulled",
     "correct spec.components[].image, or name a pull secret; kubectl describe pods -n {ns} -l {label}"),
    ("quota", r"exceeded quota", "a quota is spent", "kubectl describe resourcequota -n {ns}"),
    ("pod-security", r"violates PodSecurity", "Pod Security refuses its pods",
     "kubectl label namespace {ns} pod-security.kubernetes.io/enforce=baseline --overwrite"),
    ("webhook", r"failed calling webhook|admission webhook", "a webhook refuses its objects",
     "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations"),
    ("no-gpu-nodes", r"Insufficient nvidia\.com/gpu|Insufficient amd\.com/gpu", "no node has a free GPU",
     "kubectl describe nodes | grep -A8 Allocated; add a GPU node, or lower spec.replicas"),
    ("no-room", r"Insufficient (cpu|memory|ephemeral-storage)", "no node has room for its pods",
     "kubectl describe nodes | grep -A8 Allocated; lower spec.components[].resources"),
    ("no-volume", r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim .*not found|ProvisioningFailed",
     "a volume claim isn't bound", "kubectl get pvc,storageclass -n {ns}"),
    ("no-node", r"Unschedulable|FailedScheduling|nodes are available", "no node takes its pods",
     "kubectl describe pods -n {ns} -l {label}"),
    ("no-secret", r"secret .*not found|configmap .*not found|CreateContainerConfigError", "a Secret or ConfigMap lacks",
     "kubectl create secret generic NAME -n {ns} --from-literal=KEY=…"),
    ("out-of-memory", r"OOMKilled|out of memory", "a container ran out of memory",
     "raise spec.components[].resources.memory, or lower spec.model.contextLength"),
    ("bad-token", r"\bgated\b|HF_TOKEN|token may not|\b401\b", "the hub refuses the model",
     "kubectl create secret generic hf -n {ns} --from-literal=token=…; set spec.model.tokenSecret"),
    ("crash", r"CrashLoop|exited|Error", "a container ends at once", "dynamo logs {name} -n {ns} --previous"),
)  # fmt: skip
"""Code, what is said, what it means, the command that mends it: the first that matches is the cause."""


def cluster_findings(facts: PipelineFacts) -> Iterator[Finding]:
    """Yield why a pipeline of a cluster isn't Ready; nothing where it is."""
    if facts.phase == "ready":
        return
    if facts.phase == "unseen":
        yield Finding(
            "unseen", f"no operator has looked at {facts.name}", "the operator is down, or watches other namespaces",
            "dynamo doctor --cluster; dynamo install repairs it",
        )  # fmt: skip
        return
    said = [(f"pod {pod.name}", f"{pod.reason}: {pod.message}".removesuffix(": ")) for pod in facts.pods]
    said += [("an event", f"{reason}: {message}") for reason, message in reversed(facts.events)]
    said.append(("its condition Ready", f"{facts.reason}: {facts.message}"))
    known = list(dict.fromkeys(finding for source, text in said if (finding := _known(facts, source, text))))
    first = {finding.code: finding for finding in reversed(known)}
    yield from sorted(first.values(), key=lambda finding: finding.code == "crash")
    if not known:
        yield Finding(
            "not-ready", f"{facts.name} isn't ready", f"{facts.reason}: {facts.message}",
            f"dynamo status {facts.name} -n {facts.namespace}",
        )  # fmt: skip


def _known(facts: PipelineFacts, source: str, text: str) -> Finding | None:
    for code, pattern, means, mend in _MENDS:
        if re.search(pattern, text):
            label = f"dynamo.dev/pipeline={facts.name}"
            command = mend.format(ns=facts.namespace, name=facts.name, label=label)
            return Finding(code, f"{facts.name} isn't ready: {means}", f"{source}: {text}", command)
    return None
