"""How requests come in from outside the cluster, where the pipeline says so: an Ingress or an HTTPRoute.

Both lead to the frontends' Service. What only a controller understands (time limits of
streams, mostly) is in the user's annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dynamo.operator.api.frontend import HttpRouteSpec, IngressSpec
from dynamo.operator.kube.resources import ROUTES
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext, RenderError

HTTP_PORT = 80


def entrance(context: RenderContext) -> list[Manifest]:
    """Return the Ingress or HTTPRoute that is asked for, if any."""
    spec = context.pipeline.spec.frontend
    if spec.ingress:
        return [_ingress(context, spec.ingress)]
    return [_route(context, spec.http_route)] if spec.http_route else []


def url(context: RenderContext, live: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the endpoint's URL: outside the cluster if a host is named or a load balancer has an address by
    what is `live`, else the Service.
    """
    spec = context.pipeline.spec.frontend
    host, secure = None, False
    if spec.ingress:
        host, secure = spec.ingress.host, spec.ingress.tls_secret is not None
    elif spec.http_route:
        host, secure = next(iter(spec.http_route.hostnames), None), spec.http_route.https
    addresses = {
        item["kind"]: address
        for item in live
        if item["metadata"]["name"] == _name(context) and (address := _address(item))
    }
    if not host and spec.ingress:
        host = addresses.get("Ingress")
    if host and not host.startswith("*"):
        return f"{'https' if secure else 'http'}://{host}"
    if spec.service.type == "LoadBalancer" and "Service" in addresses:
        return f"http://{addresses['Service']}" + (f":{spec.port}" if spec.port != HTTP_PORT else "")
    return f"http://{_name(context)}.{context.kubernetes_namespace}.svc:{spec.port}"


def _address(live: Mapping[str, Any]) -> str:
    """Return the address of its load balancer, always the same of several; empty where it has none (yet)."""
    addresses = ((live.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    names = sorted(str(address.get("hostname") or address.get("ip") or "") for address in addresses)
    first = next((name for name in names if name), "")
    return f"[{first}]" if ":" in first else first


def _ingress(context: RenderContext, spec: IngressSpec) -> Manifest:
    service = {"name": _name(context), "port": {"name": "http"}}
    for key in spec.annotations:
        if any(fnmatchcase(key, pattern) for pattern in context.cluster.denied_annotations):
            raise RenderError(
                f"spec.frontend.ingress.annotations.{key[:100]}",
                "isn't allowed by the platform's pipelines.deniedIngressAnnotations: remove it",
            )
    paths = [{"path": path, "pathType": "Prefix", "backend": {"service": service}} for path in spec.paths]
    host = {"host": spec.host} if spec.host else {}
    manifest_spec: Manifest = {"rules": [{**host, "http": {"paths": paths}}]}
    if spec.class_name:
        manifest_spec["ingressClassName"] = spec.class_name
    if spec.tls_secret:
        manifest_spec["tls"] = [{**({"hosts": [spec.host]} if spec.host else {}), "secretName": spec.tls_secret}]
    return {**_head(context, "networking.k8s.io/v1", "Ingress", spec.annotations), "spec": manifest_spec}


def _route(context: RenderContext, spec: HttpRouteSpec) -> Manifest:
    if not context.cluster.http_routes:
        raise RenderError(
            "spec.frontend.httpRoute", "isn't allowed by the platform's pipelines.httpRoutes: use spec.frontend.ingress"
        )
    gateway = {"name": spec.gateway.name, "namespace": spec.gateway.namespace, "sectionName": spec.gateway.section_name}
    matches = [{"path": {"type": "PathPrefix", "value": path}} for path in spec.paths]
    rule: Manifest = {
        "matches": matches,
        "backendRefs": [{"name": _name(context), "port": context.pipeline.spec.frontend.port}],
    }
    if spec.request_timeout:
        rule["timeouts"] = {"request": spec.request_timeout}
    manifest_spec: Manifest = {"parentRefs": [{k: v for k, v in gateway.items() if v}], "rules": [rule]}
    if spec.hostnames:
        manifest_spec["hostnames"] = list(spec.hostnames)
    return {**_head(context, ROUTES.api_version, ROUTES.kind, spec.annotations), "spec": manifest_spec}


def _head(context: RenderContext, api_version: str, kind: str, annotations: dict[str, str]) -> Manifest:
    labels = naming.part_labels(context.pipeline.name, naming.FRONTEND)
    return naming.child(
        context, api_version=api_version, kind=kind, name=_name(context), labels=labels, annotations=annotations
    )


def _name(context: RenderContext) -> str:
    return naming.part_name(context.pipeline.name, naming.FRONTEND)
