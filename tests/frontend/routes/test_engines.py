"""The real engines and model files behind the frontend, over the memory runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from docs.generate.api.metrics_page import undocumented

from dynamo.llm.model_card import FileRef, ModelCard
from dynamo.llm.models.file_cache import FileServer, file_ref
from dynamo.runtime import DistributedRuntime, EndpointPath
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.main import load_model
from dynamo.worker.settings import WorkerSettings


@pytest.fixture
def serve(site: Any, within: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Serve a built engine as model `m`."""
    monkeypatch.setenv("DYN_TOKEN_ECHO_DELAY_MS", "0")

    def start(engine: str, args: str = "") -> Any:
        settings = WorkerSettings(engine=engine, model_name="m", engine_args=args)

        async def run() -> DistributedRuntime:
            model = load_model(settings)
            runtime = await DistributedRuntime.in_memory(site.world)
            site.workers.append(runtime)
            await serve_engine(runtime, create_engine(settings, model), model, settings)
            return runtime

        runtime = site.run(run())
        within("it is routed to", lambda: runtime.id in site.instances())
        return site

    return start


@pytest.mark.parametrize("engine", ["echo_core", "echo_full"])
def test_echo_engines(serve: Any, engine: str) -> None:
    """Both echo engines answer whole and streamed, with text, reason and usage."""
    site = serve(engine)
    with site.client() as client:
        whole = client.completions.create(model="m", prompt="hello there", max_tokens=100)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("hello there", "stop")
        stream = client.completions.create(
            model="m", prompt="hello there", max_tokens=100, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        assert "".join(c.choices[0].text for c in chunks if c.choices) == "hello there"
        assert chunks[-1].usage == whole.usage
        assert whole.usage is not None
        assert whole.usage.completion_tokens > 0
        chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hé"}])
        assert "hé" in (chat.choices[0].message.content or "")


def test_mocker(serve: Any) -> None:
    """The mock engine makes exactly as many tokens as were asked for; its figures are shown."""
    site = serve("mocker", '{"speedup_ratio": 1000000}')
    body = {"model": "m", "prompt": "x" * 50, "max_tokens": 40, "ignore_eos": True}
    for stream in (False, True):
        answer = site.post("/v1/completions", {**body, "stream": stream})
        assert answer.status_code == 200, answer.text
    labels = {"model": "m"}
    assert site.metric("output_tokens_total", **labels) == 80
    assert site.metric("output_sequence_tokens_sum", **labels) == 80
    assert site.metric("input_sequence_tokens_sum", **labels) == 100
    assert site.metric("model_max_num_seqs", **labels) > 0
    assert site.metric("model_total_kv_blocks", **labels) > 0
    assert undocumented(httpx.get(f"{site.url}/metrics").text) == set()


def test_corrupt_tokenizer_fails_alone(serve: Any, within: Any, tmp_path: Path) -> None:
    """A worker whose tokenizer file is no tokenizer is named with the reason; others serve on."""
    site = serve("echo_core")
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"model": {"type": "BPE", "vocab"')
    ref: FileRef = file_ref(broken)
    card = ModelCard(name="broken", tokenizer="hf", files={"tokenizer": ref})

    async def start() -> None:
        runtime = await DistributedRuntime.in_memory(site.world)
        site.workers.append(runtime)
        path = EndpointPath("test", "broken", "generate")
        runtime.server.on_control(path, "file", FileServer({ref.digest: broken}).answer)
        await runtime.endpoint(path).start(lambda incoming: incoming.finish(), card=card.to_dict())

    site.run(start())

    def found() -> dict[str, Any]:
        model: dict[str, Any] = httpx.get(site.url + "/health").json()["models"].get("broken", {})
        return model

    within("it failed", lambda: found().get("status") == "failed")
    assert found()["reason"]
    answer = site.post("/v1/completions", {"model": "broken", "prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed")
    assert site.post("/v1/completions", {"model": "m", "prompt": "x"}).status_code == 200
