"""`dynamo doctor` on a real API server: what is wrong with real objects is named, with a command that mends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

import pytest
from e2e.apiserver.client import until
from e2e.apiserver.plane import Plane
from e2e.cli.shell import Shell, install_crd

GPUS: Final = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: llama}
spec:
  model: {source: "hf://org/model"}
  components: [{engine: vllm, tensorParallelSize: 4}]
"""
NODE: Final = "apiVersion: v1\nkind: Node\nmetadata: {name: gpu-0, labels: {nvidia.com/gpu.present: 'true'}}\n"
QUOTA: Final = "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: team}\nspec: {hard: {configmaps: '1'}}\n"
DENY: Final = (
    "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny-all}\n"
    "spec: {podSelector: {}, policyTypes: [Egress]}\n"
)
WEBHOOK: Final = """apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: policy}
webhooks:
  - name: p.example.com
    admissionReviewVersions: [v1]
    sideEffects: None
    clientConfig: {service: {namespace: default, name: hook}}
    rules: [{apiGroups: [example.com], apiVersions: [v1], operations: [CREATE], resources: [things]}]
"""


def findings(shell: Shell, *words: str) -> dict[str, dict[str, str]]:
    """What doctor says, by code, in its order."""
    done = shell.run("doctor", *(words or ("--cluster",)), "-n", shell.namespace, "-o", "json")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


def _quota(shell: Shell) -> None:
    shell.kubectl("apply", "-f", "-", text=QUOTA)
    shell.kubectl("create", "configmap", "mine")

    def counted() -> bool:
        status = json.loads(shell.kubectl("get", "resourcequota", "team", "-o", "json")).get("status", {})
        return bool(status.get("used", {}).get("configmaps") == "1")

    until("the quota is counted", counted)


def _policy(shell: Shell) -> None:
    shell.kubectl("apply", "-f", "-", text=DENY)


def _pipeline(shell: Shell) -> None:
    shell.kubectl("apply", "-f", "-", text=GPUS)


@pytest.mark.parametrize(
    ("breaks", "code", "cause", "mend"),
    [
        (_quota, "quota", "1 of 1", "kubectl edit resourcequota team"),
        (_policy, "egress-denied", "deny-all", "restrictEgress"),
        (_pipeline, "no-gpu-nodes", "llama asks for nvidia.com/gpu", "llamacpp"),
    ],
    ids=["quota", "policy", "gpu"],
)
def test_a_namespace(breaks: Callable[[Shell], None], code: str, cause: str, mend: str, shell: Shell) -> None:
    """It is no finding before, and one afterwards."""
    assert code not in findings(shell)
    breaks(shell)
    finding = findings(shell)[code]
    assert cause in finding["cause"]
    assert mend in finding["mend"]


def test_a_user_without_rights(shell: Shell) -> None:
    """It comes before all else."""
    assert next(iter(findings(shell.as_nobody()))) == "no-rights"


def test_a_pipeline_that_nobody_looks_at(shell: Shell) -> None:
    """No operator runs beside this server."""
    _pipeline(shell)
    assert next(iter(findings(shell, "llama"))) == "unseen"


def test_a_cluster(bare: Plane) -> None:
    """Without a CRD; then without a node; then with one whose GPU nobody offers; then with a webhook that is away."""
    shell = Shell.fresh(bare)
    assert next(iter(findings(shell))) == "no-crd"
    install_crd(bare)
    assert next(iter(findings(shell))) == "no-ready-node"
    bare.kubectl("apply", "-f", "-", stdin=NODE)
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    bare.kubectl("patch", "node", "gpu-0", "--subresource=status", "--type=merge", "-p", json.dumps(ready))
    said = findings(shell)
    assert "no-ready-node" not in said
    assert "device plugin" in said["no-device-plugin"]["cause"]
    bare.kubectl("apply", "-f", "-", stdin=WEBHOOK)
    assert "default/hook" in findings(shell)["webhook-down"]["cause"]


def test_apply_warns_of_what_its_file_wants(shell: Shell) -> None:
    """The same rules, before anything is changed."""
    done = shell.run("apply", "-", text=GPUS)
    assert done.returncode == 0, done.stderr
    assert "warning: the cluster has no GPU node" in done.stderr
