"""Names of NVIDIA Dynamo without a meaning here: they can be imported, and say what to do instead when they are used.

So a program that imports one without using it runs, and one that uses it learns at that line why it can't.
"""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from dynamo.runtime.errors import InvalidArgument


class NotHere:
    """Refuses to be made; `instead` is the second half of the sentence."""

    instead: ClassVar[str] = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise InvalidArgument(f"dynamo.llm.{type(self).__name__}: {self.instead}")


class LoRADownloader(NotHere):
    """Adapters."""

    instead = "there are no adapters in this version: serve the merged model under a name of its own"


class MediaDecoder(NotHere):
    """Pictures and sound."""

    instead = "this version serves text"


class MediaFetcher(MediaDecoder):
    """Pictures and sound."""


class MultimodalEmbeddingCachePublisher(MediaDecoder):
    """Pictures and sound."""


class FrontendRoute(NotHere):
    """Routes of one's own on the frontend."""

    instead = "our frontends serve their own routes only; serve yours beside them, behind the same proxy"


class FrontendResponse(FrontendRoute):
    """What a `FrontendRoute` answers."""


class FrontendExtensionContext(FrontendRoute):
    """What a `FrontendRoute` is given."""


class AisPerfConfig(NotHere):
    """A model of performance for routing."""

    instead = "routers here weigh what workers have to do (--router-prefill-load-scale), not a model of their speed"


class LoadThresholdConfig(NotHere):
    """Thresholds of a `KvRouter`."""

    instead = "thresholds are the frontend's: --active-decode-blocks-threshold, --active-prefill-tokens-threshold"


class RoutingConstraints(NotHere):
    """Taints that a request bears."""

    instead = "no router here reads taints; name a worker in the request (x-worker-instance-id), or use namespaces"


class SelectionService(NotHere):
    """Choosing workers without sending."""

    instead = (
        "KvRouter.best_worker chooses and books without sending; for other processes `python -m dynamo.router` does"
    )


class KvDcRelay(NotHere):
    """KV events between data centres."""

    instead = "routers follow the workers of their own NATS"


class KvStateAgentHost(NotHere):
    """State of caches outside of workers."""

    instead = "routers ask workers for snapshots over their own connection"


class KvStateAttachmentOwner(KvStateAgentHost):
    """The same."""


class FpmEventSubscriber(NotHere):
    """Metrics of each forward pass, for a planner."""

    instead = "there is no planner of forward passes; load is in /metrics and in the instance's record"


class FpmEventRelay(FpmEventSubscriber):
    """The same."""


class FpmDirectPublisher(FpmEventSubscriber):
    """The same."""


class ModelCardInstanceId(NotHere):
    """The key of a card in discovery."""

    instead = "a card is part of its instance's record: Client.instances() has both"


class DisaggregatedRouter(NotHere):
    """0.x: whether a decode worker asks a prefill worker."""

    instead = "the frontend decides: --max-local-prefill-length, --router-conditional-disagg"


class KvMetricsAggregator(NotHere):
    """0.x: the load of all workers of a component."""

    instead = "each instance's figures are in Client.instances(); workers answer the endpoint load_metrics, too"


class KvRecorder(NotHere):
    """0.x: KV events into a file."""

    instead = "`nats sub` shows what workers publish, KvRouter.dump_events what a router knows"


class ZmqKvEventListener(NotHere):
    """0.x: an engine's ZMQ stream, as text."""

    instead = "KvEventPublisher(endpoint, zmq_endpoint=…) relays it to the routers"


class BlockManager(NotHere):
    """0.x: blocks in memory and on disk."""

    instead = "blocks beside the GPU are the engine's affair: give its own arguments"


async def run_kv_indexer(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: an indexer of its own."""
    raise InvalidArgument("dynamo.llm.run_kv_indexer: `python -m dynamo.router` answers get_overlap_scores")


async def run_select_service(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: a selection service."""
    raise InvalidArgument(f"dynamo.llm.run_select_service: {SelectionService.instead}")


async def run_slot_tracker(*args: Any, **kwargs: Any) -> NoReturn:
    """Refused: a tracker of slots."""
    raise InvalidArgument("dynamo.llm.run_slot_tracker: routers here tell each other what they send")
