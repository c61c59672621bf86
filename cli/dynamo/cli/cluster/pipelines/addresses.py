"""Where a pipeline answers, out of its Service and what lies before it. Pure.

In the order in which a user would want them: a name that somebody gave it (Ingress), an
address that the cluster's load balancer gave it, a port of the nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

Live = Mapping[str, Any]
_STANDARD = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A base URL without `/v1`, and what makes it."""

    url: str
    via: str

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Return where to connect."""
        split = urlsplit(self.url)
        return split.hostname or "", split.port or _STANDARD.get(split.scheme, 80)


def addresses(service: Live, ingresses: Iterable[Live] = (), nodes: Iterable[Live] = ()) -> list[Address]:
    """Return every address from outside the cluster, best first."""
    urls = [*_from_ingresses(service, ingresses), *_from_load_balancer(service), *_from_nodes(service, nodes)]
    return list(dict.fromkeys(urls))


def inside(service: Live) -> Address:
    """Return the address for pods of the cluster."""
    metadata = service["metadata"]
    return Address(
        _url("http", f"{metadata['name']}.{metadata['namespace']}.svc", http_port(service).get("port")), "service"
    )


def http_port(service: Live) -> Live:
    """Return the port that answers HTTP."""
    ports = service.get("spec", {}).get("ports") or [{}]
    return next((p for p in ports if p.get("name") == "http"), ports[0])


def pending(service: Live, ingresses: Iterable[Live]) -> str | None:
    """Return what was asked for and isn't there yet."""
    if service.get("spec", {}).get("type") == "LoadBalancer" and not _entrances(service):
        return "its LoadBalancer has no address yet"
    named = [i for i in ingresses if list(_rules(service, i)) and not _entrances(i)]
    return f"its Ingress {named[0]['metadata']['name']} has no address yet" if named else None


def _from_ingresses(service: Live, ingresses: Iterable[Live]) -> Iterator[Address]:
    for ingress in ingresses:
        entrances = _entrances(ingress)
        secure = [host for tls in ingress.get("spec", {}).get("tls") or [] for host in tls.get("hosts") or [""]]
        for host, path in _rules(service, ingress):
            names = [host] if host else [e for e in (_entrance(entry) for entry in entrances) if e]
            for name in names if entrances else ():
                scheme = "https" if _covered(host, secure) else "http"
                yield Address(_url(scheme, name, None) + path, f"ingress {ingress['metadata']['name']}")


def _rules(service: Live, ingress: Live) -> Iterator[tuple[str, str]]:
    """Yield host (may be empty) and path of everything that leads to the service."""
    spec = ingress.get("spec", {})
    if ingress["metadata"].get("namespace") != service["metadata"].get("namespace"):
        return
    name = service["metadata"]["name"]
    if _leads_to(spec.get("defaultBackend") or {}, name):
        yield "", ""
    for rule in spec.get("rules") or []:
        for path in (rule.get("http") or {}).get("paths") or []:
            if _leads_to(path.get("backend") or {}, name):
                yield str(rule.get("host") or ""), _prefix(path)


def _leads_to(backend: Live, service: str) -> bool:
    return (backend.get("service") or {}).get("name") == service


def _prefix(path: Live) -> str:
    """Return a plain prefix; of a pattern, what stands before it."""
    text = str(path.get("path") or "/")
    return text.split("(")[0].rstrip("/") if path.get("pathType") != "Exact" else ""


def _covered(host: str, secure: Iterable[str]) -> bool:
    wildcard = f"*.{host.partition('.')[2]}"
    return any(name in ("", host, wildcard) for name in secure)


def _from_load_balancer(service: Live) -> Iterator[Address]:
    if service.get("spec", {}).get("type") == "LoadBalancer":
        for entry in _entrances(service):
            name = _entrance(entry)
            if name:
                yield Address(_url("http", name, http_port(service).get("port")), "load balancer")


def _entrances(live: Live) -> list[Live]:
    return list(((live.get("status") or {}).get("loadBalancer") or {}).get("ingress") or [])


def _entrance(entrance: Live) -> str:
    return str(entrance.get("hostname") or entrance.get("ip") or "")


def _from_nodes(service: Live, nodes: Iterable[Live]) -> Iterator[Address]:
    number = http_port(service).get("nodePort")
    if service.get("spec", {}).get("type") not in ("NodePort", "LoadBalancer") or not number:
        return
    known = [(a["type"], a["address"]) for n in nodes if _usable(n) for a in n.get("status", {}).get("addresses") or []]
    for kind in ("ExternalIP", "ExternalDNS", "InternalIP"):
        for known_kind, address in known:
            if known_kind == kind:
                yield Address(_url("http", address, number), "node port")


def _usable(node: Live) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _url(scheme: str, host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}" if port in (None, _STANDARD[scheme]) else f"{scheme}://{name}:{port}"
