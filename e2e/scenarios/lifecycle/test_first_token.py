"""From `kubectl apply` to the first streamed token, through the Service, with the OpenAI SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.cluster.cluster import wait_for
from e2e.cluster.installation import Platform
from e2e.cluster.outage import wait_for_leader
from e2e.namespace.namespace import Namespace
from openai import OpenAI, OpenAIError

EXAMPLE = Path("examples/mocker.yaml")
PIPELINE, SERVICE, PORT, MODEL = "mocker", "mocker-frontend", 8000, "mock-model"
# The bar is 15 s on a quiet machine and is read from the figure; here is only where we stop waiting.
DEADLINE_SECONDS = 60


@pytest.mark.alone
def test_first_token(namespace: Namespace, platform: Platform, record_property: Callable[[str, object], None]) -> None:
    """A pipeline that is applied streams its first token in seconds, and ends its answer as the protocol says."""
    wait_for_leader(platform)
    began = time.monotonic()
    namespace.apply(EXAMPLE)
    wait_for("the frontend's pod is Ready", lambda: _endpoints(namespace), DEADLINE_SECONDS)
    with namespace.reach(SERVICE, PORT) as url, OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        wait_for("a token comes", lambda: _first_token(client), began + DEADLINE_SECONDS - time.monotonic())
        record_property("first_token_seconds", round(time.monotonic() - began, 1))
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Count."}], max_tokens=8, stream=True
        )
        choices = [choice for chunk in stream for choice in chunk.choices]
    assert sum(bool(choice.delta.content) for choice in choices) > 1
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    ready = namespace.wait_ready(PIPELINE)
    record_property("ready_seconds", round(time.monotonic() - began, 1))
    assert ready["status"]["url"]


def _endpoints(namespace: Namespace) -> bool:
    """Whether the frontend's Service has somebody behind it."""
    slices = namespace.list("discovery.k8s.io/v1/EndpointSlice", f"kubernetes.io/service-name={SERVICE}")
    return any(endpoint["conditions"]["ready"] for found in slices for endpoint in found["endpoints"] or [])


def _first_token(client: OpenAI) -> str | None:
    """The first piece of text of a stream; None while the model is not there yet."""
    try:
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi."}], max_tokens=4, stream=True
        )
        return next((c.delta.content for chunk in stream for c in chunk.choices if c.delta.content), None)
    except OpenAIError:
        return None
