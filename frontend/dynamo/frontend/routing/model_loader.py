"""From a card to something that can tokenise: files are fetched from a worker, then opened in a thread.

`ModelPool` calls `Loader.load` once per card digest. Any worker of the set will do, so
each is asked in turn before the card counts as failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from dynamo.llm.card import ModelCard
from dynamo.llm.files import FileCache, fetch_files
from dynamo.llm.parsers.reading import Reading
from dynamo.llm.preprocess import Preprocessor, load_preprocessor
from dynamo.runtime.errors import DynamoException, NoInstances
from dynamo.runtime.names import InstanceKey

CONTROL_SECONDS = 10.0


class Control(Protocol):
    """The part of `dynamo.runtime`'s Caller that asks instances."""

    async def listen(self, namespace: str) -> None: ...

    async def control(self, instance: InstanceKey, op: str, body: Any, *, timeout: float) -> Any: ...


class LoadedModel(msgspec.Struct):
    """What answering requests of one card needs."""

    fingerprint: str
    """`system_fingerprint` of its answers: changes when the card does."""
    preprocessor: Preprocessor | None
    """None: the engine takes text."""
    reading: Reading | None = None
    """How its answers are parsed; None: not at all."""


class Loader:
    """Loads models for one frontend process."""

    def __init__(self, caller: Control, cache: FileCache, mode: Literal["auto", "default", "fastokens"]) -> None:
        self._caller, self._cache, self._mode = caller, cache, mode

    async def listen(self, namespace: str) -> None:
        """Make requests to instances of a namespace possible."""
        await self._caller.listen(namespace)

    async def load(self, card: ModelCard, instances: Sequence[InstanceKey]) -> LoadedModel:
        """Fetch and open what `card` names; raises the last instance's error where none could give it."""
        fingerprint = "fp_" + hashlib.blake2b(card.digest.encode(), digest_size=6).hexdigest()
        if card.model_input == "text":
            return LoadedModel(fingerprint, None, Reading.of(card, None))
        error: DynamoException = NoInstances(f"no worker of model '{card.name}' is there to ask for its files")
        for instance in instances:
            try:
                preprocessor = await self._from(card, instance)
                return LoadedModel(fingerprint, preprocessor, Reading.of(card, preprocessor.tokenizer))
            except DynamoException as failure:
                error = failure
        raise error

    async def _from(self, card: ModelCard, instance: InstanceKey) -> Preprocessor:
        async def ask(op: str, body: Any) -> Any:
            return await self._caller.control(instance, op, body, timeout=CONTROL_SECONDS)

        files = await fetch_files(ask, card.files, cache=self._cache)
        return await load_preprocessor(card, files, self._mode)
