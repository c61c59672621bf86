"""Times without an operator, and a look at its pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.namespace.namespace import Namespace

STOP_SECONDS = 240
LEAD_SECONDS = 60


def home(platform: Platform) -> Namespace:
    """Where the platform lives."""
    return Namespace(platform.cluster, platform.namespace)


def operator_selector(platform: Platform) -> str:
    """Of its pods, and of what belongs to them."""
    return f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component=operator"


def wait_for_leader(platform: Platform) -> None:
    """Until an operator that runs holds the lease; where an earlier one didn't give it back, that takes 15 s."""
    here, selector = home(platform), operator_selector(platform)

    def leads() -> bool:
        pods = {pod["metadata"]["name"] for pod in here.list("v1/Pod", selector)}
        leases = here.list("coordination.k8s.io/v1/Lease")
        return any(lease["spec"].get("holderIdentity") in pods for lease in leases)

    wait_for("an operator leads", leads, LEAD_SECONDS)


@contextmanager
def operator_down(platform: Platform) -> Iterator[None]:
    """No operator runs inside; afterwards it runs again. For scenarios that are alone."""
    here, selector = home(platform), operator_selector(platform)
    (deployment,) = here.list("apps/v1/Deployment", selector)
    name, replicas = deployment["metadata"]["name"], deployment["spec"]["replicas"]
    here.kubectl("scale", f"deployment/{name}", "--replicas=0")
    try:
        wait_for("the operator is gone", lambda: not here.list("v1/Pod", selector), STOP_SECONDS)
        yield
    finally:
        here.kubectl("scale", f"deployment/{name}", f"--replicas={replicas}")
        here.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={STOP_SECONDS}s", seconds=STOP_SECONDS)
