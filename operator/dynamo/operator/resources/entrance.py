"""How requests come in from outside the cluster, where the pipeline says so: an Ingress or an HTTPRoute.

Both lead to the frontends' Service. What only a controller understands (time limits of
streams, mostly) is in the user's annotations.
"""

from __future__ import annotations

from dynamo.operator.api.frontend import HttpRouteSpec, IngressSpec
from dynamo.operator.kinds import ROUTES
from dynamo.operator.resources import naming
from dynamo.operator.resources.site import Manifest, Scene


def entrance(scene: Scene) -> list[Manifest]:
    """The one that is asked for, if any."""
    spec = scene.pipeline.spec.frontend
    if spec.ingress:
        return [_ingress(scene, spec.ingress)]
    return [_route(scene, spec.http_route)] if spec.http_route else []


def url(scene: Scene) -> str:
    """Where clients find the endpoint: outside the cluster if a host is named, else the Service."""
    spec = scene.pipeline.spec.frontend
    host, secure = None, False
    if spec.ingress:
        host, secure = spec.ingress.host, spec.ingress.tls_secret is not None
    elif spec.http_route:
        host, secure = next(iter(spec.http_route.hostnames), None), spec.http_route.https
    if host and not host.startswith("*"):
        return f"{'https' if secure else 'http'}://{host}"
    service = naming.part_name(scene.pipeline.name, naming.FRONTEND)
    return f"http://{service}.{scene.kubernetes_namespace}.svc:{spec.port}"


def _ingress(scene: Scene, spec: IngressSpec) -> Manifest:
    service = {"name": _name(scene), "port": {"name": "http"}}
    path = {"path": "/", "pathType": "Prefix", "backend": {"service": service}}
    host = {"host": spec.host} if spec.host else {}
    found: Manifest = {"rules": [{**host, "http": {"paths": [path]}}]}
    if spec.class_name:
        found["ingressClassName"] = spec.class_name
    if spec.tls_secret:
        found["tls"] = [{**({"hosts": [spec.host]} if spec.host else {}), "secretName": spec.tls_secret}]
    return {**_head(scene, "networking.k8s.io/v1", "Ingress", spec.annotations), "spec": found}


def _route(scene: Scene, spec: HttpRouteSpec) -> Manifest:
    gateway = {"name": spec.gateway.name, "namespace": spec.gateway.namespace, "sectionName": spec.gateway.section_name}
    rule: Manifest = {"backendRefs": [{"name": _name(scene), "port": scene.pipeline.spec.frontend.port}]}
    if spec.request_timeout:
        rule["timeouts"] = {"request": spec.request_timeout}
    found: Manifest = {"parentRefs": [{k: v for k, v in gateway.items() if v}], "rules": [rule]}
    if spec.hostnames:
        found["hostnames"] = list(spec.hostnames)
    return {**_head(scene, ROUTES.api_version, ROUTES.kind, spec.annotations), "spec": found}


def _head(scene: Scene, api_version: str, kind: str, annotations: dict[str, str]) -> Manifest:
    labels = naming.part_labels(scene.pipeline.name, naming.FRONTEND)
    return naming.child(scene, api_version, kind, _name(scene), labels, annotations)


def _name(scene: Scene) -> str:
    return naming.part_name(scene.pipeline.name, naming.FRONTEND)
