"""An API server that nothing but the test writes to: `Server`, etcd and kube-apiserver without controllers.

So a resourceVersion that stays says that a write changed nothing.
"""

from __future__ import annotations

import subprocess

import yaml
from e2e.apiserver.client import APPLY, until
from e2e.apiserver.plane import CRDS, Plane
from e2e.kind.binaries import GATEWAY_API, folder_of

from dynamo.operator.codegen.crd import crd
from dynamo.operator.kube.client import MANAGER
from dynamo.operator.kube.resources import PIPELINES, Resource, resource_of
from dynamo.operator.manifests.context import Manifest

NAMESPACES = Resource("v1", "Namespace", "namespaces")
ENFORCED = {"pod-security.kubernetes.io/enforce": "restricted"}


class Server(Plane):
    """A plane without its controllers."""

    def start(self) -> None:
        """Until it answers."""
        self.demand("etcd", "kube-apiserver", "kubectl")
        self._files()
        self._etcd()
        self.start_apiserver()

    def install(self, definition: Manifest, resource: Resource) -> None:
        """A CustomResourceDefinition, until its objects are served."""
        self.admin.apply(CRDS, definition)
        until(f"{resource.plural} are served", lambda: self.admin.items(resource) is not None)

    def install_ours(self) -> None:
        """Pipelines."""
        self.install(crd(), PIPELINES)

    def namespace(self, name: str) -> str:
        """One where only pods within the standard `restricted` may be."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": ENFORCED}}
        self.admin.apply(NAMESPACES, body)
        return name

    def apply(self, manifest: Manifest) -> Manifest:
        """As the operator does, and any unknown or doubled field is refused; raises `RefusedError`."""
        metadata = manifest["metadata"]
        resource = PIPELINES if manifest["kind"] == PIPELINES.kind else resource_of(manifest["kind"])
        path = resource.path(metadata["namespace"], metadata["name"])
        return self.admin.ask(
            "PATCH", f"{path}?fieldManager={MANAGER}&force=true&fieldValidation=Strict", manifest, APPLY
        )

    def try_pod(self, namespace: str, template: Manifest) -> None:
        """Whether a pod of this template would be taken; raises `RefusedError`."""
        metadata = {**template["metadata"], "name": "tried", "namespace": namespace}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        self.admin.ask("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All&fieldValidation=Strict", pod)

    def try_kubectl(self, *arguments: str, stdin: str = "") -> tuple[int, str]:
        """Its exit code, and what a user reads."""
        config = self.kubeconfig("admin", self.admin_token)
        command = [str(self.binary("kubectl")), f"--kubeconfig={config}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr


def httproutes() -> Manifest:
    """The Gateway API's own definition, out of its Go module."""
    file = folder_of(GATEWAY_API) / "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"
    return dict(yaml.safe_load(file.read_text("utf-8")))
