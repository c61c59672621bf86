"""`dynamo status`, `get-url` and `delete` against a real API server."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml
from e2e.apiserver.plane import Plane
from e2e.cli.shell import Shell, component_status

PIPELINE = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: NAME}
spec:
  components: [{engine: mocker}]
"""
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "llama-worker-r1-0",
        "labels": {"dynamo.dev/pipeline": "llama", "dynamo.dev/component": "worker"},
    },
    "spec": {"containers": [{"name": "worker", "image": "none"}]},
}


def made(shell: Shell, name: str = "llama") -> None:
    shell.kubectl("apply", "-f", "-", text=PIPELINE.replace("NAME", name))


def test_the_list_says_what_kubectl_says(shell: Shell) -> None:
    """Same columns, same words, for a pipeline that is up."""
    made(shell)
    shell.write_status("llama", "True", "Serving", "serves", model="m", engines="mocker", workers="1/1", url="http://x")
    for words, wide in ((("status",), ()), (("status", "-o", "wide"), ("-o", "wide"))):
        ours = shell.run(*words).stdout.splitlines()
        theirs = shell.kubectl("get", "dp", *wide).splitlines()
        assert ours[0].split() == theirs[0].split()
        assert ours[1].split()[:7] == theirs[1].split()[:7]


def test_an_older_ready_is_not_shown_and_not_the_exit_code(shell: Shell) -> None:
    """0 only for this generation's Ready."""
    made(shell)
    shell.write_status("llama", "True", "Serving", "serves")
    assert shell.run("status", "llama").returncode == 0
    shell.kubectl("patch", "dp", "llama", "--type=merge", "-p", '{"spec": {"replicas": 3}}')
    done = shell.run("status", "llama")
    assert done.returncode == 1
    assert done.stdout.splitlines()[1].split()[:4] == [shell.namespace, "llama", "Unknown", "Pending"]


def test_one_pipeline_closely(shell: Shell) -> None:
    """Its parts, the pod that waits, and events."""
    made(shell)
    parts = [component_status(replicas=1)]
    shell.write_status(
        "llama", "False", "Unschedulable", "no node", components=parts, conditions={"FrontendReady": "True"}
    )
    shell.kubectl("create", "-f", "-", text=json.dumps(POD))
    text = shell.run("status", "llama").stdout
    assert "worker     waits  r1        0 of 1 ready; pod llama-worker-r1-0 is not ready yet" in text
    assert "frontend   ready" in text
    assert "Unschedulable: no node" in text


def test_for_programs(shell: Shell) -> None:
    """One object, or a list of them; who owns which field is left out."""
    made(shell)
    one = yaml.safe_load(shell.run("status", "llama", "-o", "yaml").stdout)
    many = json.loads(shell.run("status", "-o", "json").stdout)
    assert one["metadata"]["name"] == "llama"
    assert "managedFields" not in one["metadata"]
    assert many["items"] == [one]
    everywhere = json.loads(shell.run("status", "-A", "-o", "json").stdout)
    assert one in everywhere["items"]


def test_watching_prints_what_changes(shell: Shell) -> None:
    """A line each; Ctrl-C is 130."""
    made(shell)
    process = shell.start("status", "--watch")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    shell.write_status("llama", "True", "Serving", "serves")
    lines.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert [line.split()[:3] for line in lines] == [
        ["NAME", "READY", "REASON"], ["llama", "Unknown", "Pending"], ["llama", "True", "Serving"],
    ]  # fmt: skip
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_mistakes_are_sentences(shell: Shell) -> None:
    """A name that isn't there, or is elsewhere; a namespace that isn't."""
    made(shell)
    made(shell, shell.namespace)
    assert "did you mean llama?" in shell.run("status", "lama").stderr
    elsewhere = shell.run("status", shell.namespace, "-n", "kube-system")
    assert f"there is one in {shell.namespace}: add -n {shell.namespace}" in elsewhere.stderr
    assert "there is no namespace nope" in shell.run("status", "-n", "nope").stderr
    empty = shell.run("status", "-n", "kube-system")
    assert (empty.returncode, empty.stdout) == (0, "")


@contextmanager
def listener(port: int = 0) -> Iterator[int]:
    """Somebody who answers."""
    with socket.create_server(("127.0.0.1", port)) as found:
        yield int(found.getsockname()[1])


def service(shell: Shell, kind: str, port: int, node_port: int | None = None) -> None:
    entry = {"name": "http", "port": port} | ({"nodePort": node_port} if node_port else {})
    spec = {"type": kind, "ports": [entry], "selector": {"a": "b"}}
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "llama-frontend"}, "spec": spec}
    shell.kubectl("apply", "-f", "-", text=json.dumps(manifest))


def test_a_cluster_ip_is_reached_by_a_forwarded_port(shell: Shell) -> None:
    """Nothing on standard output that a script could take for a URL."""
    made(shell)
    none = shell.run("get-url", "llama")
    assert "has no Service yet" in none.stderr
    service(shell, "ClusterIP", 8000)
    done = shell.run("get-url", "llama")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"From here: dynamo get-url llama -n {shell.namespace} --port-forward" in done.stderr
    inside = shell.run("get-url", "llama", "--in-cluster")
    assert inside.stdout == f"http://llama-frontend.{shell.namespace}.svc:8000\n"
    forwarded = shell.run("get-url", "llama", "--port-forward")
    assert "no frontend of" in forwarded.stderr


def test_a_load_balancer_s_address_is_the_url(shell: Shell) -> None:
    """Once it has one, and somebody answers there."""
    made(shell)
    with listener() as port:
        service(shell, "LoadBalancer", port)
        assert "its LoadBalancer has no address yet" in shell.run("get-url", "llama").stderr
        status = {"status": {"loadBalancer": {"ingress": [{"ip": "127.0.0.1"}]}}}
        shell.kubectl(
            "patch", "svc", "llama-frontend", "--subresource=status", "--type=merge", "-p", json.dumps(status)
        )
        assert shell.run("get-url", "llama").stdout == f"http://127.0.0.1:{port}\n"
    done = shell.run("get-url", "llama")
    assert done.returncode == 1
    assert f"nobody answers from here at http://127.0.0.1:{port} (load balancer)" in done.stderr


def test_deleting(shell: Shell) -> None:
    """By name or by file; the other objects of a file stay."""
    made(shell)
    made(shell, "other")
    shell.kubectl("create", "secret", "generic", "token")
    assert "did you mean llama?" in shell.run("delete", "lama").stderr
    assert shell.run("delete", "llama").stdout == f"{shell.namespace}/llama deleted\n"
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: token}\n"
    assert shell.run("delete", "-f", "-", text=f"{secret}---\n{PIPELINE.replace('NAME', 'other')}").returncode == 0
    assert shell.kubectl("get", "dp", "-o", "name") == ""
    assert "secret/token" in shell.kubectl("get", "secrets", "-o", "name")
    assert shell.run("delete", "llama").returncode == 1
    assert shell.run("delete", "llama", "--ignore-not-found").returncode == 0


def test_deleting_waits_for_pods(shell: Shell) -> None:
    """And names those that are left when the time is up."""
    made(shell)
    shell.kubectl("create", "-f", "-", text=json.dumps(POD))
    done = shell.run("delete", "llama", "--timeout", "1s")
    assert done.returncode == 1
    assert "after 1 s these are still there: pod llama-worker-r1-0" in done.stderr


@pytest.mark.full
def test_tab_offers_pipelines_contexts_and_namespaces(shell: Shell) -> None:
    """Of the cluster that the words so far mean."""
    made(shell)

    def offered(*words: str) -> list[str]:
        variables = {
            "_DYNAMO_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(["dynamo", *words]),
            "COMP_CWORD": str(len(words)),
        }  # fmt: skip
        lines = shell.run(environment=variables).stdout.splitlines()
        return [line.partition(",")[2] for line in lines if line]

    assert offered("status", "ll") == ["llama"]
    assert offered("get-url", "-n", "default", "ll") == []
    assert offered("status", "--context", "te") == ["test"]
    assert offered("status", "-n", shell.namespace[:6]) == [shell.namespace]
    assert offered("status", "--kubeconfig", "/none", "l") == []


def test_the_log_of_a_pod_that_no_node_has(shell: Shell) -> None:
    """The cluster's word, not ours; and what isn't there at all."""
    made(shell)
    assert "has no pods: see dynamo status llama" in shell.run("logs", "llama", "-n", shell.namespace).stderr
    shell.kubectl("create", "-f", "-", text=json.dumps(POD))
    done = shell.run("logs", "llama", "-n", shell.namespace)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "pod llama-worker-r1-0 is not ready yet\n")
    missing = shell.run("logs", "llama/router", "-n", shell.namespace)
    assert "llama has no pods of 'router': it has worker" in missing.stderr
    assert "did you mean llama?" in shell.run("logs", "lama", "-n", shell.namespace).stderr


@pytest.mark.timeout(200)
def test_without_the_crd_everything_names_the_installation(bare: Plane) -> None:
    """Each command, one sentence."""
    shell = Shell.fresh(bare)
    for words in (("status",), ("status", "-A"), ("status", "x"), ("get-url", "x"), ("delete", "x")):
        done = shell.run(*words)
        assert done.returncode == 1
        assert done.stderr.endswith("install the platform first: dynamo install\n"), words
    done = shell.run("apply", "-", text=PIPELINE.replace("NAME", "x"))
    assert done.stderr.endswith("install the platform first: dynamo install\n")


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of an error."""
    assert done.returncode == 1, done
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_who_may_not_is_told_what(shell: Shell) -> None:
    """403 and 401 are two things."""
    nobody = shell.as_nobody()
    assert "doesn't allow it" in sentence(nobody.run("status"))
    assert 'nobody" cannot' in sentence(nobody.run("apply", "-", text=PIPELINE.replace("NAME", "x")))
    assert "doesn't accept your credentials" in sentence(shell.with_token("wrong").run("status"))


def test_wrong_places_are_named(shell: Shell) -> None:
    """A context that isn't there, a server that is down, an authority that is another."""
    assert "it has test" in sentence(shell.run("status", "--context", "nope"))
    config = shell.config.read_text()
    dead = shell.plane.folder / "dead"
    dead.write_text(config.replace(shell.plane.server, "https://127.0.0.1:1"))
    began = time.monotonic()
    assert "connection refused. Is the cluster up" in sentence(shell.run("status", "--kubeconfig", str(dead)))
    assert time.monotonic() - began < 30
    other = shell.plane.folder / "other"
    other.write_text("\n".join(line for line in config.splitlines() if "certificate-authority" not in line))
    assert "its certificate isn't of the kubeconfig's authority" in sentence(
        shell.run("status", "--kubeconfig", str(other))
    )
