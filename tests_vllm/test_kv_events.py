"""vLLM's KV events on their whole way: its socket, our names, real NATS, the index of a router."""

from __future__ import annotations

from random import Random

import pytest
from tests.fixtures_nats import NatsServer
from tests.frontend.routing.kv_reader import Site
from tests.waiting import until
from tests.worker.engine_rigs import PROMPT, Recorder, Rig

from dynamo.frontend.routing.kv_options import KvOptions
from dynamo.frontend.routing.kv_routing import KvRouting
from dynamo.llm.kv.block_hash import compute_block_hash_for_seq, sequence_hashes

pytestmark = pytest.mark.servers


def test_what_vllm_caches_arrives_in_a_routers_index(run: object, nats_server: NatsServer) -> None:
    """Each full block of prompt and answer, under the name that a frontend gives it; and gone when vLLM forgets all."""

    async def body(rig: Rig) -> None:
        facts = rig.engine.facts
        size = facts.kv_cache_block_size
        site = Site(nats_server)
        site_worker, reader = await site.worker(), await site.reader()
        reader.routing = KvRouting(KvOptions(), size, Random(1), lambda: 0.0)
        try:
            rig.engine.on_kv(site_worker.publisher.step)
            reader.join(site_worker.key, kv_cache_block_size=size, total_kv_blocks=facts.total_kv_blocks)
            prompt = f"Nobody else asks this. {PROMPT * (3 * size // 20)}"
            sink = Recorder()
            request = rig.request(prompt=prompt, max_tokens=4, ignore_eos=True)
            rig.engine.submit(request, sink)
            await sink.end()
            names = set(sequence_hashes(compute_block_hash_for_seq(request.token_ids, size)))
            assert len(names) >= 2
            await until("the index knows the prompt", lambda: names <= reader.holds(site_worker.key), 60)
            assert await rig.engine._llm.reset_prefix_cache()
            other, _ = rig.submit(max_tokens=1)  # vLLM tells of it with its next step
            await other.end()
            await until("and that it is gone", lambda: not names & reader.holds(site_worker.key), 60)
        finally:
            await rig.engine._native.stop()
            await site.close()

    run(body)  # type: ignore[operator]
