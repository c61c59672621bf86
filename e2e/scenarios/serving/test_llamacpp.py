"""One real engine: llama.cpp on the CPU with a small model, and real tokens through the Service."""

from __future__ import annotations

import pytest
import yaml
from e2e.cluster.installation import Platform
from e2e.cluster.outage import home, operator_selector
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import asking, pipeline
from openai import OpenAI

NAME, MODEL = "gemma", "gemma-3-270m"
# It is a base model: it goes on with a text, and learns from it what is asked.
PROMPT = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
TOKENS = 8


@pytest.mark.timeout(1800)
def test_llamacpp(namespace: Namespace, platform: Platform) -> None:
    """It knows the capital of Germany, counts its tokens, and streams what it says whole."""
    worker = {
        "engine": "llamacpp",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        "podTemplate": {"spec": {"containers": [{"name": "worker", "image": _image_with_model(platform)}]}},
    }
    namespace.apply(pipeline(NAME, worker, model={"source": "file:///models/gemma.gguf", "name": MODEL}))
    namespace.wait_loaded(NAME)
    with asking(namespace, NAME) as client:
        answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0)
        text = answer.choices[0].text
        assert "Berlin" in text
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens > len(PROMPT.split())
        assert answer.usage.completion_tokens == TOKENS
        assert _streamed(client) == text


def _image_with_model(platform: Platform) -> str:
    """Beside the image of the platform's llama.cpp workers: the same with a model inside (e2e/images)."""
    here, selector = home(platform), operator_selector(platform)
    (config,) = here.list("v1/ConfigMap", selector)
    image: str = yaml.safe_load(config["data"]["config.yaml"])["images"]["workers"]["llamacpp"]
    return image.replace("/worker-llamacpp", "/worker-gemma")


def _streamed(client: OpenAI) -> str:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True)
    return "".join(choice.text for chunk in stream for choice in chunk.choices)
