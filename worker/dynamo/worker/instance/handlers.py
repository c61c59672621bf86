"""What an engine does with the requests of its endpoints: checked, constrained, handed over with a sink, cancelled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from dynamo.engine_catalog import traits_of
from dynamo.llm import ModelCard
from dynamo.llm.processing.embeddings import EmbeddingRequest
from dynamo.llm.protocols import PreprocessedRequest, TextRequest
from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.request_plane.server import Incoming, Typed
from dynamo.worker.engine import Abort, Answering, Embedding, Engine, EngineFacts
from dynamo.worker.engines import takes_text
from dynamo.worker.engines.constraints.pool import Constrained, ConstraintPool
from dynamo.worker.engines.support.request_checks import check_images, check_traits
from dynamo.worker.instance.canary import EngineWatch, watch_engine
from dynamo.worker.instance.metrics import WorkerMetrics
from dynamo.worker.instance.prompt_lengths import within
from dynamo.worker.instance.sinks import RequestSink, VectorsSink, WorkTrace
from dynamo.worker.settings import WorkerSettings

Submit = Callable[[Any, Any], Abort]
"""Gives an engine a request of its kind, with the sink for it."""


class Handlers:
    """Make the handlers of one engine: of its own endpoint, and of its adapters'."""

    def __init__(
        self, engine: Engine, facts: EngineFacts, settings: WorkerSettings, card: ModelCard, metrics: WorkerMetrics,
        traces: Callable[[Context], WorkTrace] | None,
    ) -> None:  # fmt: skip
        self._kind, self._facts, self._engine_name = _kind(engine, facts, settings), facts, settings.engine
        self.card, self._metrics, self._traces = card, metrics, traces
        self.watch = watch_engine(self._kind.submit, card, settings)
        tokens = self._kind.request is PreprocessedRequest
        self._pool = ConstraintPool(settings.engine) if tokens else None
        self._asked = engine.to_compile if isinstance(engine, Answering) else None
        self._check = within(card.context_length) if tokens else None
        self._constrained: list[Constrained] = []

    async def stop(self) -> None:
        """Fail what waits for a constraint."""
        for constrained in self._constrained:
            await constrained.stop()

    def own(self) -> Typed:
        """Return the handler of the engine's endpoint."""
        return self.of(self._kind.submit)

    def of(self, submit: Submit) -> Typed:
        """Return the handler whose requests go to `submit`."""
        if self._pool is not None:
            submit = within_traits(submit, self._engine_name, images=self._facts.images is not None)
            constrained = Constrained(self._pool, submit, self._asked)
            self._constrained.append(constrained)
            submit = guided(submit, constrained.submit, self._engine_name, self._facts.guided)
        kind = self._kind._replace(submit=submit)
        return _handler(kind, self._metrics, self.watch, self._traces, self._check)


class _Kind(NamedTuple):
    """Kind of request that an engine takes, and what it answers with."""

    request: type[Any]
    submit: Submit
    sink: type[RequestSink] | type[VectorsSink]


def _kind(engine: Engine, facts: EngineFacts, settings: WorkerSettings) -> _Kind:
    if facts.embedding_dim is None:
        submit: Submit = engine.submit  # type: ignore[attr-defined] # of either kind of engine
        return _Kind(TextRequest if takes_text(settings) else PreprocessedRequest, submit, RequestSink)
    role = facts.role or settings.role
    if role != "aggregated":
        raise InvalidArgument(f"--role {role}: an engine that makes vectors has no other half; leave it at aggregated")
    assert isinstance(engine, Embedding), "its facts say so"
    return _Kind(EmbeddingRequest, engine.embed, VectorsSink)


def _handler(
    kind: _Kind, metrics: WorkerMetrics, watch: EngineWatch | None, traces: Callable[[Context], WorkTrace] | None,
    check: Callable[[msgspec.Raw], None] | None = None,
) -> Typed:  # fmt: skip
    submit = kind.submit

    def handle(incoming: Incoming) -> None:
        request = incoming.payload
        trace = None if traces is None else traces(incoming.context)
        sink = kind.sink(incoming, metrics, watch, trace)
        try:
            if trace is None:
                abort = submit(request, sink)
            else:
                with trace.current():
                    abort = submit(request, sink)
        except Exception as error:  # whatever an engine raises is this request's answer
            sink.fail(error)
            return

        def leave() -> None:
            abort()
            sink.cancelled()

        incoming.on_cancel(leave)

    return Typed(kind.request, handle, check)


def guided(submit: Submit, constrained: Submit, engine: str, kinds: tuple[str, ...]) -> Submit:
    """Return `submit`, but requests whose output is to be constrained go by `constrained`.

    What the engine can't is refused: an answer that doesn't keep to a schema is worse than none.
    """

    def choose(request: PreprocessedRequest, sink: RequestSink) -> Abort:
        wanted = request.sampling_options.guided_decoding
        if not wanted:
            return submit(request, sink)
        if not wanted.keys() & set(kinds):
            asked = ", ".join(sorted(map(str, wanted)))[:200]
            takes = f"takes {', '.join(kinds)} only" if kinds else "can't constrain its output"
            raise InvalidArgument(f"guided decoding ({asked}): engine {engine} {takes}")
        return constrained(request, sink)

    return choose


def within_traits(submit: Submit, engine: str, *, images: bool) -> Submit:
    """Return `submit` for requests that an engine can answer: an answer that doesn't look at an image, or doesn't
    keep to what is asked, is worse than none. `images`: it takes some, and checks them."""
    traits = traits_of(engine)

    def choose(request: PreprocessedRequest, sink: RequestSink) -> Abort:
        if not images:
            check_images(request, engine, None)
        if request.routing is not None or request.sampling_options.bad_words is not None:
            check_traits(request, engine, traits)
        return submit(request, sink)

    return choose
