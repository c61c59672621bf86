"""The engine port: what an engine adapter is, in two kinds.

A *tokens* engine gets a `PreprocessedRequest` and produces token ids; a *text* engine
gets a `TextRequest` and produces text. Both push into a `Sink` instead of being pulled
through a generator: per token that is one call, no task switch, and everything that one
engine step pushes leaves the process in one message.

Contract (tests/worker/test_engine_contract.py runs it over every engine):
- `submit` returns at once; the sink is used from the event loop only (an engine with
  threads of its own hands over with `loop.call_soon_threadsafe`, batched per step).
- Exactly one `finish` or `fail` per sink, nothing after it.
- `abort()` frees the slot within one engine step; the sink is not used afterwards.
- The engine stops by itself at `max_tokens`, at a stop token id, at an EOS id (unless
  `ignore_eos` or below `min_tokens`). Stop strings are not its work (tokens engines).
- A request that it can't serve fails with `InvalidArgument`, before any output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec
from prometheus_client import Metric

from dynamo.llm.kv.messages import KvStep
from dynamo.llm.model_card import ImageTraits
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import LENGTH, PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.http.engine_routes import Callback

Abort = Callable[[], None]
"""Ends a request early; may be called any number of times, also after its end."""


GUIDED: Final = ("json", "regex", "choice", "grammar")
"""What an answer can be constrained by: the names in `guided_decoding` that `EngineFacts.guided` chooses from."""


class Sink(Protocol):
    """Sink of one request's output."""

    def push(self, produced: list[int] | str, extras: dict[str, Any] | None = None) -> None:
        """Add tokens or text."""

    def finish(self, reason: str, extras: dict[str, Any] | None = None) -> None:
        """End well; `reason` is one of `dynamo.llm.protocols`' finish reasons."""

    def fail(self, error: Exception) -> None:
        """End badly; a `DynamoException` keeps its code, anything else becomes `EngineError`."""


class VectorSink(Protocol):
    """Sink of one request's vectors; the same promises as a `Sink`'s."""

    def push(self, index: int, vector: bytes) -> None:
        """Take the vector of the input of that number, as float32 (`dynamo.llm.processing.embeddings`).

        Each once, in any order.
        """

    def finish(self) -> None:
        """Note that all of them are there."""

    def fail(self, error: Exception) -> None:
        """End badly, as a `Sink` does."""


@runtime_checkable
class OfRequest(Protocol):
    """Sink that belongs to a request of a client, beside the rest."""

    @property
    def context(self) -> Context:
        """Return its id, its time limit, what travels with it."""


def context_of(sink: Sink | VectorSink) -> Context:
    """Return the context of the request that a sink belongs to; of nobody's request a new one."""
    return sink.context if isinstance(sink, OfRequest) else Context()


def nothing_wanted(sink: Sink) -> Abort:
    """Return the answer to `max_tokens: 0`: an end without output; return it from `submit`."""
    sink.finish(LENGTH)
    return lambda: None


class EngineFacts(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Facts that an engine knows of itself once it is ready; they go into the instance's record."""

    context_length: int | None = None
    kv_cache_block_size: int | None = None
    total_kv_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    data_parallel_size: int = 1
    """Ranks, each with a scheduler and a KV cache of its own; the three figures before this are those of one rank."""
    role: Literal["aggregated", "prefill", "decode"] | None = None
    """Its part of the work, where its own arguments say so."""
    bootstrap_host: str = ""
    """Where decode engines find a prefill engine; empty: by its instance."""
    bootstrap_port: int | None = None
    """There where a prefill engine meets decode engines, which then get requests before their prompts are computed."""
    guided: tuple[str, ...] = ()
    """What it can constrain its output by, of `guided_decoding`'s names (`json`, `regex`, …); requests with another
    are refused before it sees them."""
    resumes_guided: bool = False
    """Given the first tokens of a constrained answer, it goes on within its constraint."""
    embedding_dim: int | None = None
    """Numbers in one of its vectors. There where the engine makes vectors (`Embedding`); then it makes nothing else."""
    images: ImageTraits | None = None
    """There where prompts may hold images; requests with some are refused before an engine without it sees them."""
    images_hint: str = ""
    """What would have it take some; clients that are refused are told."""
    tool_call_parser: str = ""
    """Parser that reads the form in which a text engine writes tool calls, unless its user names another."""
    reasoning_parser: str = ""
    """The same of thoughts."""
    kv_events: bool = False
    """It says which blocks it caches (`KvCaching`)."""
    lost_streams: Literal["", "movable", "ended"] = ""
    """What becomes of a stream that has begun when its worker is lost: another one can continue it at its token, as
    often as the migration limit says, or it ends with an error. The worker fills it in. Before the first token another
    worker is tried in any case."""


class EngineLoad(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Load of an engine now; for `/metrics` and least-loaded routing."""

    running: int = 0
    waiting: int = 0
    used_kv_blocks: int = 0
    kv_usage: float = 0.0
    """Share of the KV blocks in use, 0 to 1."""
    preemptions: int = 0
    """Requests sent back to the queue for want of KV blocks, since the start."""


class Engine(Protocol):
    """Common to both kinds."""

    async def start(self) -> EngineFacts:
        """Load; raises with one clear sentence where the model or an argument is bad."""

    async def stop(self) -> None:
        """Free everything; running requests fail with `EngineShutdown`."""

    async def failed(self) -> BaseException:
        """Wait until the engine dies by itself and return why; never returns while it works."""

    def load(self) -> EngineLoad: ...


@runtime_checkable
class Embedding(Protocol):
    """Part of an engine that can be told to make vectors; then it gets such requests only."""

    def embed(self, request: EmbeddingRequest, sink: VectorSink) -> Abort:
        """Take a request as `submit` does: return at once, and refuse with `InvalidArgument` what can't be served."""


@runtime_checkable
class Measuring(Protocol):
    """Part of an engine that keeps metrics of its own."""

    def metrics(self) -> Iterable[Metric]:
        """Return all of them as they are now, by the engine's own names.

        Those of ours that are called alike give way.
        """


@runtime_checkable
class Absent(Protocol):
    """Part of an engine whose work is done elsewhere, so that it can be away for a while without having died."""

    def on_away(self, tell: Callable[[str], None]) -> None:
        """Tell, on the loop, why it can't work just now, and an empty text once it can. Called once, after `start`."""


@runtime_checkable
class Adapting(Protocol):
    """Part of an engine that serves adapters of its model, each under a name of its own."""

    def on_adapters(self, tell: Callable[[Sequence[str]], None]) -> None:
        """Tell, on the loop, which can be asked now, and again whenever that changes. Called once, after `start`."""

    def submit_to(self, adapter: str, request: Any, sink: Sink) -> Abort:
        """Take a request as `submit` does, for an adapter."""


@runtime_checkable
class Remarking(Protocol):
    """Part of an engine that knows what its user should see in the worker's `/health`, ready or not."""

    def remarks(self) -> Sequence[str]:
        """Return what it waits for, and what is amiss: a few sentences; asked at any time, also before `start`."""


@runtime_checkable
class Stepping(Protocol):
    """Part of an engine that knows when its sinks have all that there is just now."""

    def on_step(self, flush: Callable[[], None]) -> None:
        """Call `flush` then, on the loop: else the output leaves with the loop's next turn. Called once, after
        `start`."""


KvListener = Callable[[KvStep], None]


@runtime_checkable
class KvCaching(Protocol):
    """Part of an engine whose facts say `kv_events`."""

    def on_kv(self, listener: KvListener) -> None:
        """Tell `listener`, on the loop, at the end of each engine step that changed the cache: from the first one on.

        Called once, before the first request.
        """


@runtime_checkable
class Routed(Protocol):
    """Part of an engine that can be told things over HTTP."""

    def routes(self) -> Mapping[str, Callback]:
        """Return what answers `POST /engine/<name>` of the system server; asked for once, after `start`."""


class Fetched(Protocol):
    """Receiver of a prompt of another engine; exactly one of `arrived` and `lost`, nothing after it."""

    def begins(self, about: Any) -> None:
        """Note that it is on its way, and what the other engine says of it."""

    def arrived(self) -> None:
        """Note that it is here."""

    def lost(self, error: DynamoException) -> None:
        """Note that it will not come."""


Fetch = Callable[[str, str, Fetched], Abort]
"""Has the prompt of a name come from the instance at an address; the result gives it up."""


class Taker(Protocol):
    """The stream to an engine that came for a prompt."""

    def send(self, data: Any) -> None:
        """Say that it is on its way, and what to say of it."""

    def finish(self) -> None:
        """Say that all of it is there."""

    def fail(self, error: BaseException) -> None:
        """Say that it will not come."""


@runtime_checkable
class Answering(Protocol):
    """Part of an engine whose constrained answers are made where constraints are compiled."""

    def to_compile(self, request: PreprocessedRequest, wanted: dict[str, Any]) -> dict[str, Any]:
        """Return what the compiler is told of a request: the constraint, and what the engine adds."""


@runtime_checkable
class KvHanding(Protocol):
    """Part of an engine that computes prompts for others, or goes on with what others computed."""

    def hand_over(self, address: Callable[[], str], fetch: Fetch) -> None:
        """Learn where it is, for what it hands out, and how to come for what is elsewhere.

        Called once, before the first request.
        """

    def give(self, name: str, taker: Taker) -> Abort:
        """Give a prompt to somebody who comes for it; the result is called where he goes away.

        `StreamIncomplete`: it isn't here.
        """

    async def all_taken(self) -> None:
        """Wait until no prompt is kept for anybody."""


class Nodes(NamedTuple):
    """A group of nodes that is whole: what each of its engines is told before it starts."""

    leader: tuple[str, int]
    """Host and port at which the node of rank 0 is found, as all were told."""
    hosts: Sequence[str]
    """Of the leader only: where each node runs, by rank."""


@runtime_checkable
class OverNodes(Protocol):
    """Part of an engine that survives the loss of a node of its group; others end with it."""

    def broken(self, why: str) -> None:
        """Fail what runs and what is submitted with `EngineShutdown`: a node was lost, and nothing is cached."""

    def whole(self) -> None:
        """Go on: the group is whole again; may be called when it always was."""


class Node(Protocol):
    """An engine's part on a node that isn't the leader; it takes no requests. May be `OverNodes`."""

    async def start(self, nodes: Nodes) -> None:
        """Join; raises with one clear sentence where the model or an argument is bad."""

    async def stop(self) -> None:
        """Free everything."""

    async def failed(self) -> BaseException:
        """Wait as an `Engine` does."""


class TokenEngine(Engine, Protocol):
    """Tokens in, tokens out."""

    def submit(self, request: PreprocessedRequest, sink: Sink) -> Abort: ...


class TextEngine(Engine, Protocol):
    """Text in, text out."""

    def submit(self, request: TextRequest, sink: Sink) -> Abort: ...
