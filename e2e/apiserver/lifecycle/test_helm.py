"""A pipeline in a chart: what Helm itself says of it, and what the chart's notes tell users to ask."""

from __future__ import annotations

import subprocess
from pathlib import Path

from e2e.apiserver.client import until
from e2e.apiserver.lifecycle.test_agreement import waiting
from e2e.apiserver.operators import REPOSITORY
from e2e.apiserver.world import World

CHART = REPOSITORY / "charts/dynamo-pipeline"
VALUES = "pipelines: {llama: {spec: {components: [{name: worker, engine: mocker, replicas: 2}]}}}"


def test_helm_3_does_not_wait_for_pipelines_and_the_notes_say_who_does(world: World, tmp_path: Path) -> None:
    """Its `--wait` knows Kubernetes' own kinds alone, so it ends before anything serves; `kubectl wait` doesn't."""
    world.operators.start()
    (tmp_path / "values.yaml").write_text(VALUES)
    notes = helm(world, "install", "models", str(CHART), "--wait", "--timeout=60s", f"--values={tmp_path}/values.yaml")
    assert "STATUS: deployed" in notes
    assert f"kubectl -n {world.namespace} wait dp/llama --for=condition=Ready" in notes
    assert world.condition("Ready").get("status") != "True", "no kubelet has done anything yet"
    process = waiting(world)
    try:
        world.settle()
        assert process.poll() is None
        world.until_ready()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(10)
    helm(world, "uninstall", "models", "--wait", "--timeout=60s")
    until("all is gone", lambda: not world.children())


def helm(world: World, *words: str) -> str:
    """As the administrator; what it prints."""
    kubeconfig = world.plane.kubeconfig("helm", world.plane.admin_token)
    command = [str(world.plane.binary("helm")), f"--kubeconfig={kubeconfig}", f"--namespace={world.namespace}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
