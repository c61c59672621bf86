"""Where a pipeline answers, from what Kubernetes has of it."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo.cli.cluster.kubeconfig import Target
from dynamo.cli.cluster.pipelines.addresses import Address, addresses, http_port, inside, pending
from dynamo.cli.cluster.pipelines.find_url import nothing_answers
from dynamo.cli.cluster.pipelines.locate import Location, named_outside
from dynamo.cli.cluster.pipelines.next_steps import lines
from dynamo.cli.cluster.pipelines.progress import PipelinePhase, PipelineProgress
from dynamo.cli.local.next_steps import Served


def service(kind: str = "ClusterIP", port: int = 8000, **more: Any) -> dict[str, Any]:
    node_port = more.pop("node_port", None)
    entry = {"name": "http", "port": port} | ({"nodePort": node_port} if node_port else {})
    return {
        "metadata": {"name": "llama-frontend", "namespace": "serving"},
        "spec": {"type": kind, "ports": [entry]},
        "status": {"loadBalancer": {"ingress": more.get("given", [])}},
    }


def ingress(host: str = "", path: str = "/", *, given: Any = ({"ip": "192.0.2.7"},), **more: Any) -> dict[str, Any]:
    backend = {"service": {"name": more.get("backend", "llama-frontend"), "port": {"number": 8000}}}
    rule = {"host": host, "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}
    tls = [{"hosts": more["tls"]}] if "tls" in more else []
    return {
        "metadata": {"name": "door", "namespace": more.get("namespace", "serving")},
        "spec": {"rules": [rule], "tls": tls},
        "status": {"loadBalancer": {"ingress": list(given)}},
    }


def node(ready: bool = True, **kinds: str) -> dict[str, Any]:
    listed = [{"type": kind, "address": address} for kind, address in kinds.items()]
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"status": {"addresses": listed, "conditions": conditions}}


def test_in_the_cluster_the_service_has_a_name() -> None:
    """Port 80 needn't be said."""
    assert inside(service()).url == "http://llama-frontend.serving.svc:8000"
    assert inside(service(port=80)).url == "http://llama-frontend.serving.svc"


def test_a_cluster_ip_has_no_address_outside() -> None:
    """Not even where there are nodes."""
    assert addresses(service(), [], [node(InternalIP="192.0.2.1")]) == []


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        (ingress("llm.example.com"), "http://llm.example.com"),
        (ingress("llm.example.com", tls=["llm.example.com"]), "https://llm.example.com"),
        (ingress("llm.example.com", tls=["*.example.com"]), "https://llm.example.com"),
        (ingress("llm.example.com", tls=["other.example.com"]), "http://llm.example.com"),
        (ingress("llm.example.com", "/llama"), "http://llm.example.com/llama"),
        (ingress("llm.example.com", "/llama(/|$)(.*)"), "http://llm.example.com/llama"),
        (ingress(), "http://192.0.2.7"),
        (ingress(given=[{"hostname": "lb.example.com"}]), "http://lb.example.com"),
    ],
)
def test_an_ingress_gives_it_a_name(fields: dict[str, Any], url: str) -> None:
    """With its scheme and its path."""
    assert [a.url for a in addresses(service(), [fields])] == [url]


@pytest.mark.parametrize(
    "fields",
    [ingress("x.example.com", backend="other"), ingress("x.example.com", namespace="other"), ingress("x", given=[])],
)
def test_other_ingresses_do_not_count(fields: dict[str, Any]) -> None:
    """Of another Service, of another namespace, or without a controller that took it."""
    assert addresses(service(), [fields]) == []


def test_a_default_backend_counts() -> None:
    """It has no rule."""
    live = ingress()
    live["spec"] = {"defaultBackend": {"service": {"name": "llama-frontend"}}}
    assert [a.url for a in addresses(service(), [live])] == ["http://192.0.2.7"]


def test_a_load_balancer_has_an_address_and_nodes_have_ports() -> None:
    """Best first: name, address, ports of nodes that are ready, outer ones before inner ones."""
    balanced = service("LoadBalancer", given=[{"ip": "2001:db8::1"}], node_port=30080)
    nodes = [node(InternalIP="192.0.2.1"), node(ExternalIP="192.0.2.2"), node(False, ExternalIP="192.0.2.3")]
    assert addresses(balanced, [ingress("llm.example.com")], nodes) == [
        Address("http://llm.example.com", "ingress door"),
        Address("http://[2001:db8::1]:8000", "load balancer"),
        Address("http://192.0.2.2:30080", "node port"),
        Address("http://192.0.2.1:30080", "node port"),
    ]


def test_what_is_asked_for_and_not_there_is_said() -> None:
    """So that nobody looks for a mistake of their own."""
    assert pending(service("LoadBalancer"), []) == "its LoadBalancer has no address yet"
    assert pending(service(), [ingress("x", given=[])]) == "its Ingress door has no address yet"
    assert pending(service(), [ingress("x", given=[], backend="other")]) is None


def test_where_to_connect() -> None:
    """Host and port, the scheme's own where none is said."""
    assert Address("https://llm.example.com/llama", "").host_and_port == ("llm.example.com", 443)
    assert Address("http://[2001:db8::1]:8000", "").host_and_port == ("2001:db8::1", 8000)


def test_a_name_that_the_status_knows_is_tried() -> None:
    """An HTTPRoute's host; the Service's own name is no address from outside."""
    assert [a.url for a in named_outside("https://llm.example.com/")] == ["https://llm.example.com"]
    assert named_outside("http://llama-frontend.serving.svc:8000") == []
    assert named_outside("") == []


def test_a_service_without_names_has_its_first_port() -> None:
    """Somebody else's."""
    assert http_port({"spec": {"ports": [{"port": 1}, {"port": 2}]}}) == {"port": 1}
    assert http_port({"spec": {"ports": [{"port": 1, "name": "x"}, {"port": 2, "name": "http"}]}})["port"] == 2


def location(reachable: Address | None = None, **more: Any) -> Location:
    return Location(service(port=more.get("port", 8000)), reachable, more.get("tried", ()), more.get("pending"))


def greeted(where: Location, workers: tuple[int, int] = (2, 2), target: Target | None = None) -> str:
    pipeline_progress = PipelineProgress("llama", "serving", PipelinePhase.READY, workers=workers)
    return "\n".join(lines(pipeline_progress, where, Served("m"), target or Target()))


def test_the_greeting_can_be_pasted() -> None:
    """With an address that answers, one line is enough."""
    text = greeted(location(Address("http://llm.example.com", "ingress door")))
    assert "url    http://llm.example.com/v1\n" in text
    assert "curl -N http://llm.example.com/v1/chat/completions" in text
    assert "port-forward" not in text


def test_without_an_address_the_greeting_makes_one() -> None:
    """Two lines, the same cluster and a port that an ordinary user may open."""
    text = greeted(location(port=80), target=Target(context="my prod"))
    assert "http://llama-frontend.serving.svc/v1   (inside the cluster)" in text
    assert "dynamo get-url llama -n serving --port-forward --context 'my prod'" in text
    assert "curl -N http://127.0.0.1:8000/v1/chat/completions" in text
    assert "its LoadBalancer has no address yet" in greeted(location(pending="its LoadBalancer has no address yet"))


def test_the_greeting_does_not_hide_missing_workers() -> None:
    """Scaled to zero is Ready too."""
    assert "no workers: replicas is 0" in greeted(location(), (0, 0))
    assert "1 of 2 workers so far" in greeted(location(), (1, 2))


def test_why_nothing_answers() -> None:
    """What was tried, or that there is nothing to try."""
    tried = (Address("http://192.0.2.1:30080", "node port"),)
    assert "nobody answers from here at http://192.0.2.1:30080 (node port)" in nothing_answers(
        location(tried=tried), "x"
    )
    assert "inside the cluster only, at http://llama-frontend.serving.svc:8000" in nothing_answers(location(), "x")
    assert nothing_answers(location(pending="no address yet"), "x").startswith("no address yet. From here: x")
