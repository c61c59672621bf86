"""How requests come in from outside the cluster, where the pipeline says so: an Ingress or an HTTPRoute.

Both lead to the frontends' Service. What only a controller understands (time limits of
streams, mostly) is in the user's annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dynamo.operator.api.frontend import HttpRouteSpec, IngressSpec
from dynamo.operator.kinds import ROUTES
from dynamo.operator.resources import naming
from dynamo.operator.resources.site import Manifest, Scene

HTTP_PORT = 80


def entrance(scene: Scene) -> list[Manifest]:
    """The one that is asked for, if any."""
    spec = scene.pipeline.spec.frontend
    if spec.ingress:
        return [_ingress(scene, spec.ingress)]
    return [_route(scene, spec.http_route)] if spec.http_route else []


def url(scene: Scene, live: Iterable[Mapping[str, Any]] = ()) -> str:
    """Where clients find the endpoint: outside the cluster if a host is named or a load balancer has an address by
    what is `live`, else the Service.
    """
    spec = scene.pipeline.spec.frontend
    host, secure = None, False
    if spec.ingress:
        host, secure = spec.ingress.host, spec.ingress.tls_secret is not None
    elif spec.http_route:
        host, secure = next(iter(spec.http_route.hostnames), None), spec.http_route.https
    addresses = {one["kind"]: found for one in live if one["metadata"]["name"] == _name(scene)
                 and (found := _address(one))}  # fmt: skip
    if not host and spec.ingress:
        host = addresses.get("Ingress")
    if host and not host.startswith("*"):
        return f"{'https' if secure else 'http'}://{host}"
    if spec.service.type == "LoadBalancer" and "Service" in addresses:
        return f"http://{addresses['Service']}" + (f":{spec.port}" if spec.port != HTTP_PORT else "")
    return f"http://{_name(scene)}.{scene.kubernetes_namespace}.svc:{spec.port}"


def _address(live: Mapping[str, Any]) -> str:
    """Of its load balancer, always the same one of several; empty where it has none (yet)."""
    found = ((live.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    names = sorted(str(one.get("hostname") or one.get("ip") or "") for one in found)
    first = next((name for name in names if name), "")
    return f"[{first}]" if ":" in first else first


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
