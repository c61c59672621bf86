"""As of early 2025: a runtime from its constructor, no decorator; tokens, leases, keys in etcd."""

import asyncio
import sys

from dynamo.runtime import DistributedRuntime, EtcdKvCache


async def keys(runtime: DistributedRuntime, prefix: str) -> None:
    etcd = runtime.etcd_client()
    assert etcd is not None
    await etcd.kv_create_or_validate(f"{prefix}/a", b"1")
    await etcd.kv_put(f"{prefix}/a", b"2", etcd.primary_lease_id())
    for what in (etcd.kv_create, etcd.kv_create_or_validate):
        try:
            await what(f"{prefix}/a", b"3")
        except Exception as error:
            print("refused", error)
    print("keys", [(entry["key"].rpartition("/")[2], entry["value"]) for entry in await etcd.kv_get_prefix(prefix)])
    cache = await EtcdKvCache.create(etcd, f"{prefix}/cache/", {"x": b"1", "y": "two"})
    await cache.put("z", b"3")
    await cache.delete("x")
    print("cache", await cache.get("y"), await cache.get("x"), sorted(await cache.get_all()))
    await cache.clear_all()
    print("cleared", await cache.get_all())


async def main(runtime: DistributedRuntime) -> None:
    token = runtime.child_token()
    await keys(runtime, f"/{sys.argv[1]}")
    endpoint = runtime.namespace(sys.argv[1]).component("backend").endpoint("generate")
    etcd = runtime.etcd_client()
    assert etcd is not None
    assert etcd.primary_lease_id() == endpoint.lease_id()
    client = await endpoint.client()
    print("ids", client.instance_ids())
    runtime.shutdown()
    await token.cancelled()
    await runtime.primary_token().cancelled()
    print("cancelled")


loop = asyncio.new_event_loop()
made = DistributedRuntime(loop, False)
assert made.event_loop() is loop
loop.run_until_complete(main(made))
loop.run_until_complete(made.shutdown())
loop.close()
