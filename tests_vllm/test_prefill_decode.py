"""One vLLM computes prompts, another goes on with them: over NIXL, behind a frontend, on a real etcd and NATS."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures_etcd import EtcdServer
from tests.fixtures_nats import NatsServer
from tests.waiting import eventually
from tests.worker.engine_rigs import PROMPT, VLLM, Rig
from tests_vllm.programs import PATIENCE, RUN, WORKER, client, running
from tests_vllm.test_engine import directly

pytestmark = [pytest.mark.servers, pytest.mark.processes]
PROMPTS = [f"{number}. {PROMPT * 3}" for number in range(4)]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}}


def count(page: str, name: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^\S*{re.escape(name)}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE)
    return sum(float(value) for value in found)


def test_prompts_computed_elsewhere(
    run: Any, tiny: Path, tmp_path: Path, etcd_server: EtcdServer, nats_server: NatsServer
) -> None:
    """The answers are those of one vLLM that does both; each prompt came over the connector."""
    texts: list[str] = []

    async def body(rig: Rig) -> None:
        told = [await directly(rig, prompt, 16, ignore_eos=True) for prompt in PROMPTS]
        texts.extend(one.outputs[0].text for one in told)

    run(body)
    env = {"ETCD_ENDPOINTS": etcd_server.url, "NATS_SERVER": nats_server.url}
    flags = ["--engine", "vllm", "--model-path", str(tiny), "--system-port", "0", "--engine-args", VLLM]
    with (
        running(tmp_path, RUN, ["in=http", "out=dyn", "--http-port", "0"], **env) as front,
        running(
            tmp_path, WORKER, [*flags, "--role", "prefill", "--endpoint", "dyn://pd.prefill.generate"], "prefill", **env
        ) as prefill,
        running(
            tmp_path, WORKER, [*flags, "--role", "decode", "--endpoint", "dyn://pd.backend.generate"], "decode", **env
        ) as decode,
    ):
        url = front.ready()["url"]
        prefill.ready()
        port = decode.ready()["system_port"]
        asker = client(url)
        eventually("the model is served", lambda: asker.models.list().data)
        ask = partial(asker.completions.create, **ASKED)

        def counted(name: str) -> float:
            return count(httpx.get(f"{url}/metrics").text, name)

        # The frontend may hear of the model before it can ask the prefill worker, and the first transfer connects both.
        known = "model_remote_prefills_total"
        eventually("prompts are computed elsewhere", lambda: ask(prompt="soon") and counted(known), PATIENCE)
        before, alone = counted(known), counted("model_prefill_fallbacks_total")
        found = [ask(prompt=prompt).choices[0].text for prompt in PROMPTS]
        assert [text.rstrip("\N{REPLACEMENT CHARACTER}") for text in found] == texts
        assert (counted(known), counted("model_prefill_fallbacks_total")) == (before + len(PROMPTS), alone)
        page = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert count(page, "vllm:nixl_bytes_transferred_count") >= 1
        assert count(page, "vllm:nixl_num_failed_transfers_total") == 0
