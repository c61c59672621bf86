"""Where a model comes from: a folder, a GGUF file, the hub, a package of the Python index, or nothing at all.

A worker calls `open_model` once at start. The answer is the card that it registers, the
files that frontends may fetch by digest, and the path that the engine loads.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from dynamo.llm.hub.names import Weights, parse
from dynamo.llm.model_card import CHAT_TEMPLATE, ModelCard
from dynamo.llm.models.file_cache import FileCache, file_ref
from dynamo.llm.models.local_model import LocalModel
from dynamo.llm.models.paths import find_path, is_of_hub
from dynamo.llm.tokenizer import byte_level
from dynamo.runtime.errors import InvalidArgument

BUILT_IN_NAME: Final = "bytes"
"""The served name of a model without files that was given none."""
BUILT_IN_CONTEXT: Final = 131_072
_PACKAGE: Final = "package://"
_TEMPLATE_LIMIT: Final = 1 << 20


def open_model(
    source: str | Path | None = None,
    *,
    name: str | None = None,
    context_length: int | None = None,
    chat_template: str | Path | None = None,
    cache: FileCache | None = None,
    weights: Weights = "any",
    stop: threading.Event | None = None,
    described_by: str | Path | None = None,
    **card_fields: Any,
) -> LocalModel:
    """Read the model's description; `InvalidArgument` says what is wrong with it in one sentence. May take seconds.

    A model of the hub is loaded into its cache first, which may take an hour and ends soon after `stop` is set; of its
    files those that an engine with these `weights` reads. `described_by` names a folder or a model of the hub whose
    tokenizer, template and configuration are taken instead of a GGUF file's own. `chat_template` (a Jinja file, or the
    template itself) and any other field of `ModelCard` override what the model says; `context_length` lowers it.
    """
    cache = cache or FileCache()
    try:
        model = _open(source, cache, weights, stop)
        if described_by:
            model = _described(model, str(described_by), cache, stop)
    except OSError as error:
        raise InvalidArgument(f"the model at {str(source)!r} can't be read: {error.strerror or error}") from error
    changes: dict[str, Any] = {key: value for key, value in card_fields.items() if value is not None}
    if name:
        changes["name"] = name
    if context_length:
        if source and weights != "none":
            _check_context(context_length, model.card.context_length)
        changes["context_length"] = context_length
    for key, value in changes.items():
        if key not in ModelCard.__struct_fields__:
            raise TypeError(f"a model card has no field {key!r}")
        setattr(model.card, key, value)
    if chat_template is not None:
        _use_template(model, chat_template, cache)
    return model


def _open(source: str | Path | None, cache: FileCache, weights: Weights, stop: threading.Event | None) -> LocalModel:
    if source is None or source == "":
        return built_in()
    if isinstance(source, str) and source.startswith(_PACKAGE):
        from dynamo.llm.models.python_package import assemble

        return _open_path(assemble(source.removeprefix(_PACKAGE), cache), cache, weights)
    if isinstance(source, str) and is_of_hub(source):
        from dynamo.llm.hub.fetch import fetch

        model = _open_path(fetch(source, weights=weights, stop=stop), cache, weights)
        named = parse(source)
        # The folder's own name is that of a commit.
        return replace(model, card=msgspec.structs.replace(model.card, name=named.repo)) if named else model
    return _open_path(find_path(str(source)), cache, weights)


def _open_path(path: Path, cache: FileCache, weights: Weights) -> LocalModel:
    if path.is_dir():
        from dynamo.llm.models.checkout import open_checkout

        return open_checkout(path, cache, weights)
    from dynamo.llm.models.gguf import open_gguf

    return open_gguf(path, cache)


def _described(model: LocalModel, by: str, cache: FileCache, stop: threading.Event | None) -> LocalModel:
    """Return the GGUF file `model` with another description of it.

    Its own ids have to be enough for that one's tokens.
    """
    if model.path is None or model.path.suffix != ".gguf":
        raise InvalidArgument(f"{by} can describe a .gguf file only: a folder has its own tokenizer and template")
    other = _open(by, cache, "none", stop)
    own, theirs = model.card, other.card
    if (theirs.vocab_size or 0) > (own.vocab_size or 0):
        raise InvalidArgument(
            f"the tokenizer of {by} has {theirs.vocab_size} tokens, and {model.path.name} knows {own.vocab_size}: it "
            "belongs to another model"
        )
    lengths = [length for length in (own.context_length, theirs.context_length) if length is not None]
    card = msgspec.structs.replace(theirs, name=own.name, context_length=min(lengths, default=None))
    return LocalModel(card, other.files, model.path)


def built_in() -> LocalModel:
    """Describe the model without files: bytes as tokens and the plain chat template."""
    card = ModelCard(
        name=BUILT_IN_NAME,
        tokenizer="bytes",
        context_length=BUILT_IN_CONTEXT,
        vocab_size=byte_level.VOCAB_SIZE,
        eos_token_ids=[byte_level.EOS_ID],
        bos_token_id=byte_level.BOS_ID,
        special_tokens={"eos_token": byte_level.SPECIAL["eos_token"]},
    )
    return LocalModel(card)


def _check_context(wanted: int, known: int | None) -> None:
    """Refuse a context that is too long: a model that really runs has no more positions than it was made for."""
    if known is not None and wanted > known:
        raise InvalidArgument(
            f"a context length of {wanted} is more than the {known} tokens that the model was made for: "
            "lower it, or leave it out"
        )


def _use_template(model: LocalModel, template: str | Path, cache: FileCache) -> None:
    """Replace the model's templates by a file, or by the text itself."""
    from dynamo.llm.processing.chat_template import ChatTemplate

    if isinstance(template, str) and any(mark in template for mark in ("{{", "{%", "\n")):
        ChatTemplate(template)  # an error in it is told now, not at the first request
        ref = cache.keep(template.encode(), "chat_template.jinja")
        path = cache.find(ref)
    else:
        path = Path(template).expanduser()
        ChatTemplate(_read_template(path))
        ref = file_ref(path)
    kept = {role: old for role, old in model.card.files.items() if not role.startswith(CHAT_TEMPLATE)}
    model.card.files = {**kept, CHAT_TEMPLATE: ref}
    if path is not None:
        model.files[ref.digest] = path


def _read_template(path: Path) -> str:
    try:
        if path.stat().st_size > _TEMPLATE_LIMIT:
            raise InvalidArgument(f"the chat template {str(path)!r} is larger than 1 MB")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the chat template {str(path)!r} can't be read: {error}") from error
