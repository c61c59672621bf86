"""Why one pipeline isn't Ready: in a cluster by its conditions, pods and events, here by its parts and logs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis.findings import Finding, Weight
from dynamo.runtime.http.system_server import BUS_AWAY


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


@dataclass(frozen=True)
class LocalPart:
    """One part of a local pipeline."""

    name: str
    state: str
    reason: str = ""
    restarts: int = 0
    last_error: str = ""
    kind: str = ""
    """`frontend`, `worker`, `node` or `infra`."""
    stopped: int | None = None
    """Its process, where a signal has stopped that."""


@dataclass(frozen=True)
class LocalFacts:
    """One pipeline of this machine."""

    name: str
    file: str
    alive: bool
    parts: tuple[LocalPart, ...] = ()


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


_LOCAL_MENDS: Final = (
    ("engine-missing", r"isn't installed|is not installed|No module named", "install it: dynamo doctor {file}"),
    ("disk-full", r"No space left", "dynamo clean"),
    ("port-taken", r"[Aa]ddress already in use", "dynamo up {file} --http-port 0"),
    ("bad-token", r"HF_TOKEN|\bgated\b", "export HF_TOKEN=…"),
    ("out-of-memory", r"[Oo]ut of memory|SIGKILL|killed by signal 9",
     "dmesg | grep -i 'killed process' says whether memory ran out: then a smaller model, or spec.model.contextLength"),
    ("model-broken", r"no model at|GGUF", "correct spec.model.source: dynamo validate {file}"),
)  # fmt: skip


def local_findings(facts: LocalFacts) -> Iterator[Finding]:
    """Yield why a pipeline of this machine doesn't serve."""
    if not facts.alive:
        failed = next((p.last_error for p in facts.parts if p.last_error), "")
        code, mend = _local(failed, "not-up", "dynamo up {file}")
        yield Finding(
            code, f"{facts.name} isn't up", failed or "dynamo up ended, or was killed",
            mend.format(file=facts.file, name=facts.name, part=""),
        )  # fmt: skip
        return
    kinds = {part.kind for part in facts.parts}
    if "frontend" in kinds and "worker" not in kinds:
        yield Finding(
            "no-workers", f"{facts.name} has no workers", "spec.replicas, or a component's, is 0: requests find nobody",
            f"set spec.replicas to 1 or more in {facts.file}, then dynamo up {facts.file}",
        )  # fmt: skip
    for part in facts.parts:
        if (finding := _of_part(facts, part)) is not None:
            yield finding


def _of_part(facts: LocalFacts, part: LocalPart) -> Finding | None:
    logs = f"dynamo logs {facts.name}/{part.name} --tail 50"
    if part.state == "ready":
        what = f"{part.name} of {facts.name} serves, and something is amiss"
        return Finding("amiss", what, part.reason, logs, Weight.WARNING) if part.reason else None
    if part.stopped is not None:
        return Finding("stopped", f"{part.name} of {facts.name} is stopped", part.reason, f"kill -CONT {part.stopped}")
    if part.state == "notready" and BUS_AWAY in part.reason:
        return Finding(
            "bus-away", f"{part.name} of {facts.name} can't reach NATS", part.reason,
            f"dynamo doctor, which asks the NATS that NATS_SERVER names; dynamo logs {facts.name}/nats --tail 20",
        )  # fmt: skip
    if part.state == "notready" and part.kind == "frontend":
        return Finding("frontend-silent", f"{part.name} of {facts.name} doesn't answer", part.reason, logs)
    if part.state == "notready":
        return Finding("not-routed", f"{part.name} of {facts.name} gets no requests", part.reason, logs)
    if part.state == "starting" and not part.restarts:
        return Finding(
            "starting", f"{part.name} of {facts.name} is starting",
            part.last_error or part.reason or "it loads its model",
            f"dynamo logs {facts.name}/{part.name} -f", Weight.WARNING,
        )  # fmt: skip
    code, mend = _local(f"{part.reason} {part.last_error}", "crash", "dynamo logs {name}/{part} --tail 50")
    return Finding(
        code, f"{part.name} of {facts.name} doesn't serve", part.reason or part.last_error or f"it is {part.state}",
        mend.format(file=facts.file, name=facts.name, part=part.name),
    )  # fmt: skip


def _local(text: str, code: str, mend: str) -> tuple[str, str]:
    """Return the code of what a text says, and the command that mends it; those given where it says nothing known."""
    return next(((code, mend) for code, pattern, mend in _LOCAL_MENDS if re.search(pattern, text)), (code, mend))
