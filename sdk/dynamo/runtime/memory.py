"""One world inside one process: the memory adapters that belong together.

`await DistributedRuntime.in_memory(world)`: runtimes of the same world see each other.
"""

from __future__ import annotations

import dataclasses

from dynamo.runtime._memory_bus import MemoryNetwork
from dynamo.runtime._memory_store import StoreWorld


@dataclasses.dataclass
class MemoryWorld:
    """What etcd and NATS are to a deployment."""

    store: StoreWorld = dataclasses.field(default_factory=StoreWorld)
    network: MemoryNetwork = dataclasses.field(default_factory=MemoryNetwork)
