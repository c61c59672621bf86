"""From a card to something that can tokenise: files are fetched from a worker, then opened in a thread.

`ModelWatcher` calls `Loader.load` once per card digest. Any worker of the set will do, so
each is asked in turn before the card counts as failed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec

from dynamo.llm.model_card import TOKENIZER, ModelCard
from dynamo.llm.models.file_cache import LARGEST, FileCache, fetch_files
from dynamo.llm.parsers.factory import ParserFactory
from dynamo.llm.processing.preprocess import Preprocessor, load_preprocessor
from dynamo.llm.processing.template_files import LARGEST_JSON
from dynamo.llm.tokenizer.checks import MOST_BYTES
from dynamo.runtime.errors import DynamoException, InvalidArgument, NoInstances
from dynamo.runtime.names import InstanceKey

CONTROL_SECONDS = 10.0


class Control(Protocol):
    """The part of `dynamo.runtime`'s Caller that asks instances."""

    async def listen(self, namespace: str) -> None: ...

    async def control(self, instance: InstanceKey, op: str, body: Any, *, timeout: float) -> Any: ...


class LoadedModel(msgspec.Struct):
    """Model, with what answering requests of its card needs."""

    fingerprint: str
    """`system_fingerprint` of its answers: changes when the card does."""
    preprocessor: Preprocessor | None
    """None: the engine takes text."""
    reading: ParserFactory | None = None
    """How its answers are parsed; None: not at all."""


def check_sizes(card: ModelCard) -> None:
    """Raise `InvalidArgument` for files that are far larger than any model's: they would be read into memory whole."""
    if sum(ref.size for ref in card.files.values()) > LARGEST:
        return  # `fetch_files` refuses more than that by its sum
    for role, ref in card.files.items():
        most = MOST_BYTES if role == TOKENIZER else LARGEST_JSON
        if ref.size > most:
            raise InvalidArgument(f"the card's {role[:100]} has {ref.size} bytes: at most {most} are read")


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
            return LoadedModel(fingerprint, None, ParserFactory.of(card, None))
        error: DynamoException = NoInstances(f"no worker of model '{card.name}' is there to ask for its files")
        for instance in instances:
            try:
                preprocessor = await self._from(card, instance)
                return LoadedModel(fingerprint, preprocessor, ParserFactory.of(card, preprocessor.tokenizer))
            except DynamoException as failure:
                error = failure
        raise error

    async def _from(self, card: ModelCard, instance: InstanceKey) -> Preprocessor:
        async def ask(op: str, body: Any) -> Any:
            return await self._caller.control(instance, op, body, timeout=CONTROL_SECONDS)

        check_sizes(card)
        files = await fetch_files(ask, card.files, cache=self._cache)
        return await load_preprocessor(card, files, self._mode)
