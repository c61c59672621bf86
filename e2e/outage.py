"""Times without an operator, and a look at its pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.cluster import wait_for
from e2e.installation import Platform
from e2e.namespace import Namespace

STOP_SECONDS = 240


def home(platform: Platform) -> Namespace:
    """Where the platform lives."""
    return Namespace(platform.cluster, platform.namespace)


def operator_selector(platform: Platform) -> str:
    """Of its pods, and of what belongs to them."""
    return f"app.kubernetes.io/instance={platform.release},app.kubernetes.io/component=operator"


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
