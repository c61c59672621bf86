"""The frontends: a Deployment, which rolls by itself, and how requests come to it.

That is the Service whose name users know and, where the pipeline says so, an Ingress or an HTTPRoute from outside the
cluster. Both lead to the Service. What only a controller understands (time limits of streams, mostly) is in the
user's annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dynamo.operator.api.frontend import ApiKeys, HttpRouteSpec, IngressSpec
from dynamo.operator.kube.resources import ROUTES
from dynamo.operator.manifests import naming
from dynamo.operator.manifests.context import Manifest, RenderContext, RenderError
from dynamo.operator.manifests.pod import CACHE, container_of, environment, literal, pod_template, resources_of
from dynamo.operator.plan.plan import SYSTEM_PORT
from dynamo.operator.plan.workload import Placement, Workload, resolve

DEFAULT_PORT = 8000
FIRST_FREE_PORT = 1024
_REQUESTS = {"cpu": "100m", "memory": "512Mi"}
MEMORY_LIMIT_GIB = 2
"""Of each process: twice of what a hundred requests of the largest size take together."""
API_KEYS = "/etc/dynamo/api-keys"
_API_KEYS_VARIABLE = "DYN_API_KEYS_FILE"


def frontend_deployment(context: RenderContext) -> Manifest:
    """Return the Deployment; new pods come first, so that its Service never goes without one."""
    workload, name = context.plan.frontend, context.pipeline.name
    head = naming.child(
        context,
        api_version="apps/v1",
        kind="Deployment",
        name=naming.part_name(name, naming.FRONTEND),
        labels=naming.part_labels(name, naming.FRONTEND),
    )
    rollout = workload.rollout
    spec: Manifest = {
        "replicas": workload.replicas,
        "revisionHistoryLimit": 3,
        "selector": {"matchLabels": naming.part_selector(name, naming.FRONTEND)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "template": _template(context, workload),
    }
    return {**head, "spec": spec}


def frontend_service(context: RenderContext) -> Manifest:
    """Return the Service in front of all frontends, on the port that the pipeline names."""
    name, spec = context.pipeline.name, context.pipeline.spec.frontend
    head = naming.child(
        context,
        api_version="v1",
        kind="Service",
        name=naming.part_name(name, naming.FRONTEND),
        labels=naming.part_labels(name, naming.FRONTEND),
        annotations=spec.service.annotations,
    )
    port = {"name": "http", "port": spec.port, "targetPort": "http", "protocol": "TCP", "appProtocol": "http"}
    selector = naming.part_selector(name, naming.FRONTEND)
    return {**head, "spec": {"type": spec.service.type, "selector": selector, "ports": [port]}}


def frontend_ports(context: RenderContext) -> dict[str, int]:
    """Return container ports by name; without root a process can't have the lowest, which the Service hides."""
    ports = {port.name: port.preferred for port in context.plan.frontend.ports}
    if ports["http"] < FIRST_FREE_PORT or ports["http"] == SYSTEM_PORT:
        ports["http"] = DEFAULT_PORT
    return ports


def health_port(context: RenderContext) -> int:
    """Return the port on which a frontend is asked for its health."""
    probe = context.plan.frontend.probe
    return frontend_ports(context)[probe.port if probe else "http"]


def _api_keys(spec: ApiKeys | None) -> tuple[list[Manifest], list[Manifest]]:
    """Mount the file with the keys as a folder, so that the kubelet renews it. Without the Secret no pod starts."""
    if spec is None:
        return [], []
    source = {"secretName": spec.secret, "items": [{"key": spec.key, "path": "keys"}], "defaultMode": 0o440}
    mount = {"name": "api-keys", "mountPath": API_KEYS, "readOnly": True}
    return [{"name": "api-keys", "secret": source}], [mount]


def _template(context: RenderContext, workload: Workload) -> Manifest:
    spec, ports = context.pipeline.spec.frontend, frontend_ports(context)
    argv = resolve(tuple(literal(a) if isinstance(a, str) else a for a in workload.argv), Placement(ports, {}))
    values = {
        **dict(workload.environment),
        "DYN_CACHE_DIR": CACHE,
        "HOME": "/tmp",  # the container's own
        "DYN_DISABLE_FRONTEND_ADMIN_API": "true",  # whoever shares the pod's network, as a mesh does, is "local"
        **({_API_KEYS_VARIABLE: f"{API_KEYS}/keys"} if spec.api_keys else {}),
    }
    keys_volumes, keys_mounts = _api_keys(spec.api_keys)
    cache = {"name": "cache", "mountPath": CACHE}
    container = container_of(
        context,
        workload=workload,
        name=naming.FRONTEND,
        image=context.cluster.frontend_image,
        argv=argv,
        ports=ports,
        env=environment(context, values, []),
        mounts=[cache, *keys_mounts],
        resources=resources_of(spec.resources, _REQUESTS, memory_limit=f"{MEMORY_LIMIT_GIB * spec.workers}Gi"),
    )
    labels = naming.revision_labels(context.pipeline.name, workload)
    volumes: list[Manifest] = [{"name": "cache", "emptyDir": {}}, *keys_volumes]
    return pod_template(
        context,
        workload=workload,
        container=container,
        volumes=volumes,
        labels=labels,
        patch=spec.pod_template,
        path="spec.frontend.podTemplate",
    )


HTTP_PORT = 80


def entrance(context: RenderContext) -> list[Manifest]:
    """Return the Ingress or HTTPRoute that is asked for, if any."""
    spec = context.pipeline.spec.frontend
    if spec.ingress:
        return [_ingress(context, spec.ingress)]
    return [_route(context, spec.http_route)] if spec.http_route else []


def frontend_url(context: RenderContext, live: Iterable[Mapping[str, Any]] = ()) -> str:
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
