"""One real engine: llama.cpp on the CPU with a small model, and real tokens through the Service."""

from __future__ import annotations

import pytest
from e2e.cluster.installation import Platform
from e2e.namespace.images import worker_image
from e2e.namespace.namespace import Namespace
from e2e.namespace.pipelines import asking, pipeline, workers
from openai import OpenAI

NAME, MODEL = "gemma", "gemma-3-270m"
# It is a base model: it goes on with a text, and learns from it what is asked.
PROMPT = "Question: capital of France? Answer: Paris. Question: capital of Germany? Answer:"
TOKENS = 8


@pytest.mark.timeout(1800)
def test_llamacpp(namespace: Namespace, platform: Platform) -> None:
    """It knows the capital of Germany, counts its tokens, and streams what it says whole."""
    _speaks(namespace, worker_image(platform, "gemma"))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_a_worker_beside_an_engines_own_image(namespace: Namespace, platform: Platform) -> None:
    """It speaks as well, and the engine's packages are those of its own image: an older prometheus-client than ours."""
    _speaks(namespace, worker_image(platform, "beside"))
    (pod,) = workers(namespace, NAME)
    code = "import prometheus_client as p, importlib.metadata as m; print(m.version('prometheus-client'), p.__file__)"
    version, place = namespace.kubectl("exec", pod["metadata"]["name"], "--", "python", "-c", code).split()
    assert version == "0.22.1"
    assert not place.startswith("/opt/dynamo")


def _speaks(namespace: Namespace, image: str) -> None:
    worker = {
        "engine": "llamacpp",
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}},
        "image": image,
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


def _streamed(client: OpenAI) -> str:
    stream = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True)
    return "".join(choice.text for chunk in stream for choice in chunk.choices)
