"""`dynamo apply` against a real API server."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from e2e.apiserver.plane import Plane
from e2e.cli.shell import Shell, install_crd

MOCKER = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: mocker}
spec:
  components: [{engine: mocker}]
"""
SERVICE = """apiVersion: v1
kind: Service
metadata: {name: mocker-frontend}
spec: {ports: [{name: http, port: 8000}], selector: {a: b}}
"""


def with_replicas(number: int) -> str:
    return MOCKER.replace("spec:", f"spec:\n  replicas: {number}")


def waiting(shell: Shell, text: str) -> subprocess.Popen[str]:
    """An `apply --wait` that has sent its file."""
    file = shell.plane.folder / f"{shell.namespace}.yaml"
    file.write_text(text)
    process: subprocess.Popen[str] = shell.start("apply", str(file), "--wait", "--timeout", "80s")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("dynamopipeline mocker ")
    return process


def test_created_configured_unchanged(shell: Shell) -> None:
    """What became of each object, in kubectl's words; only fields of the file are ours."""
    assert shell.run("apply", "-", text=MOCKER).stdout == "dynamopipeline mocker created\n"
    assert shell.run("apply", "-", text=MOCKER).stdout == "dynamopipeline mocker unchanged\n"
    again = shell.run("apply", "-", text=with_replicas(3))
    assert (again.stdout, again.returncode) == ("dynamopipeline mocker configured\n", 0)
    live = json.loads(shell.kubectl("get", "dp", "mocker", "-o", "json", "--show-managed-fields"))
    owned = live["metadata"]["managedFields"]
    assert [(m["manager"], m["operation"]) for m in owned] == [("dynamo-cli", "Apply")]
    assert set(owned[0]["fieldsV1"]["f:spec"]) == {"f:components", "f:replicas"}


def test_a_wait_ends_when_this_generation_is_ready(shell: Shell) -> None:
    """The Ready of the generation before doesn't count; then model, URL and lines to paste."""
    shell.run("apply", "-", text=MOCKER)
    shell.kubectl("apply", "-f", "-", text=SERVICE)
    shell.write_status("mocker", "True", "Serving", "serves", model="old", workers="1/1")
    parts = [
        {
            "name": "worker",
            "revision": "r1",
            "replicas": 2,
            "updatedReplicas": 2,
            "readyReplicas": 2,
            "availableReplicas": 2,
        }
    ]
    process = waiting(shell, with_replicas(2))
    time.sleep(2)  # in which an older Ready would have ended it
    assert process.poll() is None
    shell.write_status("mocker", "True", "Serving", "serves", model="new", components=parts)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert "worker: ready after" in stdout
    assert "  model  new\n" in stdout
    assert f"http://mocker-frontend.{shell.namespace}.svc:8000/v1   (inside the cluster)" in stdout
    assert f"dynamo get-url mocker -n {shell.namespace} --port-forward\n" in stdout
    assert "curl -N http://127.0.0.1:8000/v1/chat/completions" in stdout


def test_a_stalled_pipeline_ends_the_wait_with_its_reason(shell: Shell) -> None:
    """Without waiting for the time to pass."""
    process = waiting(shell, MOCKER)
    shell.write_status("mocker", "False", "NameConflict", "Service x is somebody else's", stalled=True)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    where = f"{shell.namespace}/mocker"
    assert f"Error: {where} will not become ready: NameConflict: Service x is somebody else's" in stderr


def test_the_end_of_the_time_says_what_was_waited_for(shell: Shell) -> None:
    """The condition's sentence and the last events."""
    shell.run("apply", "-", text=MOCKER)
    shell.write_status("mocker", "False", "Unschedulable", "worker: 0 of 1 ready; pod w-0 has no node")
    uid = shell.live("mocker")["metadata"]["uid"]
    event = {
        "apiVersion": "v1", "kind": "Event", "metadata": {"generateName": "e"}, "type": "Warning",
        "reason": "Unschedulable", "message": "no node has nvidia.com/gpu",
        "involvedObject": {"kind": "DynamoPipeline", "name": "mocker", "namespace": shell.namespace, "uid": uid},
    }  # fmt: skip
    shell.kubectl("create", "-f", "-", text=json.dumps(event))
    done = shell.run("apply", "-", "--wait", "--timeout", "2s", text=MOCKER)
    assert done.returncode == 1
    assert "isn't ready after 2 s: Unschedulable: worker: 0 of 1 ready; pod w-0 has no node" in done.stderr
    assert "  Warning Unschedulable dynamopipeline/mocker: no node has nvidia.com/gpu" in done.stderr


def test_without_an_operator_the_wait_says_so(shell: Shell) -> None:
    """And what brings one."""
    done = shell.run("apply", "-", "--wait", "--timeout", "1s", text=MOCKER)
    assert done.returncode == 1
    assert "no operator has looked at it for 1 s" in done.stderr
    assert "dynamo install" in done.stderr


def test_a_pipeline_that_is_deleted_ends_the_wait(shell: Shell) -> None:
    """One of the same name that comes after it is another."""
    process = waiting(shell, MOCKER)
    shell.kubectl("delete", "dp", "mocker")
    shell.kubectl("apply", "-f", "-", text=MOCKER)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was deleted while this waited" in stderr


def test_conflicts_name_the_other_owner(shell: Shell) -> None:
    """And can be forced."""
    shell.kubectl("apply", "-f", "-", text=with_replicas(2))
    refused = shell.run("apply", "-", text=with_replicas(3))
    assert refused.returncode == 1
    assert "kubectl-client-side-apply owns spec.replicas" in refused.stderr
    assert shell.live("mocker")["spec"]["replicas"] == 2
    forced = shell.run("apply", "-", "--force-conflicts", text=with_replicas(3))
    assert (forced.returncode, shell.live("mocker")["spec"]["replicas"]) == (0, 3)


def test_the_server_s_own_refusals_name_field_and_remedy(shell: Shell) -> None:
    """Of what only it can know: what stood there before."""
    shell.run("apply", "-", text=MOCKER)
    done = shell.run("apply", "-", text=MOCKER.replace("spec:", "spec:\n  namespace: another"))
    assert done.returncode == 1
    assert "spec" in done.stderr
    assert "namespace" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    """Not even with --wait."""
    done = shell.run("apply", "-", "--dry-run", "--wait", text=MOCKER)
    assert done.stdout == "dynamopipeline mocker created (dry run)\n"
    assert shell.kubectl("get", "dp", "-o", "name") == ""


def test_other_objects_of_the_file_go_along(shell: Shell) -> None:
    """In order; where the server doesn't know a kind, nothing is sent at all."""
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\nstringData: {HF_TOKEN: x}\n"
    unknown = "apiVersion: example.com/v1\nkind: Unknown\nmetadata: {name: x}\n"
    done = shell.run("apply", "-", text=f"{secret}---\n{MOCKER}---\n{unknown}")
    assert done.returncode == 1
    assert "doesn't know Unknown of example.com/v1: nothing was applied" in done.stderr
    assert shell.kubectl("get", "secrets,dp", "-o", "name") == ""
    done = shell.run("apply", "-", text=f"{secret}---\n{MOCKER}")
    assert done.stdout == "secret token created\ndynamopipeline mocker created\n"


def test_one_that_is_refused_does_not_stop_the_others(shell: Shell) -> None:
    """As kubectl goes on too; the exit code tells."""
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\ntype: [wrong]\n"
    done = shell.run("apply", "-", text=f"{secret}---\n{MOCKER}")
    assert (done.returncode, done.stdout) == (1, "dynamopipeline mocker created\n")
    assert "1 of 2 objects was refused" in done.stderr


def test_ctrl_c_ends_a_wait_at_once(shell: Shell) -> None:
    """130, and no word of Python."""
    process = waiting(shell, MOCKER)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in stderr


@pytest.mark.timeout(200)
def test_a_wait_survives_the_api_server(bare: Plane) -> None:
    """It goes away for a while and comes back."""
    install_crd(bare)
    shell = Shell.fresh(bare)
    process = waiting(shell, MOCKER)
    bare.kill_apiserver()
    assert process.stdout is not None
    assert "can't be reached" in process.stdout.readline()
    bare.start_apiserver()
    shell.write_status("mocker", "True", "Serving", "serves", model="m")
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, stderr
    assert stdout.count("can't be reached") == 0
