"""Pipelines for the scenarios, and the OpenAI SDK against one through its Service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from e2e.cluster.cluster import wait_for
from e2e.namespace.namespace import Namespace
from openai import OpenAI, OpenAIError

API_VERSION = "dynamo.dev/v1alpha1"
PIPELINE_LABEL = "dynamo.dev/pipeline"
ANSWER_SECONDS = 60
PORT = 8000

Object = dict[str, Any]


def pipeline(name: str, *components: Object, **spec: Any) -> Object:
    """A DynamoPipeline; without components it has one of the mocker."""
    body = {"components": list(components) or [{"engine": "mocker"}], **spec}
    return {"apiVersion": API_VERSION, "kind": "DynamoPipeline", "metadata": {"name": name}, "spec": body}


def workers(namespace: Namespace, name: str, component: str = "worker") -> list[Object]:
    """Pods of a component that aren't about to go."""
    found = namespace.list("v1/Pod", f"{PIPELINE_LABEL}={name},dynamo.dev/component={component}")
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def is_ready(pod: Object) -> bool:
    """Whether Kubernetes sends requests to it."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@contextmanager
def asking(namespace: Namespace, name: str, port: int = PORT) -> Iterator[OpenAI]:
    """The SDK, without retries of its own, so that every error is seen."""
    with (
        namespace.reach(f"{name}-frontend", port) as url,
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=ANSWER_SECONDS) as client,
    ):
        yield client


def say(client: OpenAI, model: str, text: str = "Hello", tokens: int = 8) -> str:
    """One answer of a chat."""
    answer = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=tokens
    )
    return answer.choices[0].message.content or ""


def answers(client: OpenAI, model: str, seconds: float = ANSWER_SECONDS) -> str:
    """The first answer, waited for while the model is not there yet."""

    def first() -> str | None:
        try:
            return say(client, model)
        except OpenAIError:
            return None

    return wait_for(f"model {model} answers", first, seconds)
