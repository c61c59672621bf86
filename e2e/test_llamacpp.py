"""One real engine: llama.cpp on the CPU with a small model, and real tokens through the Service."""

from __future__ import annotations

import pytest
import yaml
from e2e.installation import Platform
from e2e.namespace import Namespace
from e2e.outage import home, operator_selector
from e2e.pipelines import asking, pipeline
from openai import OpenAI

NAME, MODEL = "gemma", "gemma-3-270m"
LOAD_SECONDS = 300
QUESTION = "What is the capital of France? Answer with one word."


@pytest.mark.timeout(900)
def test_llamacpp(namespace: Namespace, platform: Platform) -> None:
    """It knows the capital of France, streams what it says whole, counts tokens, and is the same with one seed."""
    worker = {
        "engine": "llamacpp",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        "podTemplate": {"spec": {"containers": [{"name": "worker", "image": _image_with_model(platform)}]}},
    }
    namespace.apply(pipeline(NAME, worker, model={"source": "file:///models/gemma.gguf", "name": MODEL}))
    namespace.wait_ready(NAME, LOAD_SECONDS)
    with asking(namespace, NAME) as client:
        answer = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=16, temperature=0
        )
        text = answer.choices[0].message.content or ""
        assert "Paris" in text
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > len(QUESTION.split())
        assert _streamed(client) == text


def _image_with_model(platform: Platform) -> str:
    """Beside the image of the platform's llama.cpp workers: the same with a model inside (e2e/images)."""
    here, selector = home(platform), operator_selector(platform)
    (config,) = here.list("v1/ConfigMap", selector)
    image: str = yaml.safe_load(config["data"]["config.yaml"])["images"]["workers"]["llamacpp"]
    return image.replace("/worker-llamacpp", "/worker-gemma")


def _streamed(client: OpenAI) -> str:
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], max_tokens=16, temperature=0, stream=True
    )
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
