"""A worker's system server beside probes and figures: what it serves, the model's files, the engine's own routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from dynamo.llm import open_model
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.runtime import DistributedRuntime
from dynamo.worker.engines import create_engine
from dynamo.worker.instance.metadata import slug
from dynamo.worker.instance.serving import serve_engine
from dynamo.worker.settings import WorkerSettings

PATH = EndpointPath("tests", "backend", "generate")
ENGINE = """
asleep = False
async def sleep(body):
    global asleep
    asleep = body.get("level", 1) > 0
    return {"asleep": asleep}
engine_routes = {"sleep": sleep}
async def generate(request):
    yield {"token_ids": [1]}
"""


def serve(folder: Path, case: Callable[[httpx.AsyncClient, DistributedRuntime], Awaitable[None]]) -> None:
    """Run `case` against the system server of a worker with a user's file."""
    (folder / "engine.py").write_text(ENGINE)
    template = folder / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")

    async def main() -> None:
        model = open_model(None, name="Org/Model 1", chat_template=template)
        settings = WorkerSettings(
            engine="python", python_file=str(folder / "engine.py"), endpoint=str(PATH), system_port=0
        )
        async with await DistributedRuntime.in_memory() as runtime:
            serving = await serve_engine(runtime, create_engine(settings, model), model, settings)
            try:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{serving.system_port}") as client:
                    await case(client, runtime)
            finally:
                await serving.stop(0.0)

    asyncio.run(main())


def test_what_is_served(tmp_path: Path) -> None:
    """Instance, endpoint, card, routes, and files under NVIDIA Dynamo's paths, as they are."""

    async def case(client: httpx.AsyncClient, runtime: DistributedRuntime) -> None:
        answer = (await client.get("/v1/metadata")).json()
        assert (answer["instance_id"], answer["endpoint"], answer["model"]) == (runtime.id, str(PATH), "Org/Model 1")
        assert (answer["card"]["name"], answer["engine_routes"]) == ("Org/Model 1", ["sleep"])
        path = answer["files"]["chat_template"]
        assert path == "/v1/metadata/tests/backend/generate/org-model-1/_base/plain.jinja"
        assert (await client.get(path)).text == (tmp_path / "plain.jinja").read_text()
        for wrong, status in (("other", 404), ("..%2F..%2Fetc%2Fpasswd", 404)):
            assert (await client.get(path.replace("plain.jinja", wrong))).status_code == status
        assert (await client.get("/v1/metadata/else")).status_code == 404
        assert (await client.post("/v1/metadata")).status_code == 405

    serve(tmp_path, case)


def test_routes_of_an_engine(tmp_path: Path) -> None:
    """What a user's file calls `engine_routes`, from its start on."""

    async def case(client: httpx.AsyncClient, _: DistributedRuntime) -> None:
        assert (await client.post("/engine/sleep", json={"level": 2})).json() == {"asleep": True}
        assert (await client.post("/engine/wake")).status_code == 404
        assert (await client.get("/health")).json()["status"] == "ready"

    serve(tmp_path, case)


@pytest.mark.parametrize(
    ("port", "enabled", "wanted"),
    [(-1, None, -1), (-1, True, 0), (9090, True, 9090), (9090, None, 9090), (9090, False, -1), (0, None, 0)],
)
def test_the_old_switch(port: int, enabled: bool | None, wanted: int) -> None:
    """`DYN_SYSTEM_ENABLED` of earlier versions beside `DYN_SYSTEM_PORT`."""
    assert WorkerSettings(system_port=port, system_enabled=enabled).wanted_system_port == wanted


def test_slugs() -> None:
    """One part of a path, whatever the name."""
    assert [slug(name) for name in ("Org/Model 1", "../..", "größe")] == ["org-model-1", "model", "gr-e"]
