"""Where a model comes from: a folder, a GGUF file, the hub, a package of the Python index, or nothing at all.

A worker calls `open_model` once at start. The answer is the card that it registers, the
files that frontends may fetch by digest, and the path that the engine loads.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from dynamo.llm import bytelevel
from dynamo.llm.card import CHAT_TEMPLATE, ModelCard
from dynamo.llm.files import FileCache, file_ref
from dynamo.llm.hub import SCHEME, fetch
from dynamo.runtime.errors import InvalidArgument

BUILT_IN_NAME: Final = "bytes"
"""The served name of a model without files that was given none."""
BUILT_IN_CONTEXT: Final = 131_072
_PACKAGE: Final = "package://"
_FILE: Final = "file://"
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_TEMPLATE_LIMIT: Final = 1 << 20


@dataclass(frozen=True)
class LocalModel:
    """A model on this machine."""

    card: ModelCard
    files: dict[str, Path] = field(default_factory=dict)
    """By digest: what the worker serves to frontends."""
    path: Path | None = None
    """What the engine loads: the folder or the GGUF file."""


def open_model(
    source: str | Path | None = None,
    *,
    name: str | None = None,
    context_length: int | None = None,
    chat_template: str | Path | None = None,
    cache: FileCache | None = None,
    weights: bool = True,
    **card_fields: Any,
) -> LocalModel:
    """Read the model's description; `InvalidArgument` says what is wrong with it in one sentence. May take seconds.

    A model of the hub is loaded into its cache first, which may take an hour; without `weights` only its description.
    `context_length`, `chat_template` (a Jinja file) and any other field of `ModelCard` override what the model says.
    """
    cache = cache or FileCache()
    try:
        model = _open(source, cache, weights)
    except OSError as error:
        raise InvalidArgument(f"the model at {str(source)!r} can't be read: {error.strerror or error}") from error
    changes: dict[str, Any] = {key: value for key, value in card_fields.items() if value is not None}
    if name:
        changes["name"] = name
    if context_length:
        changes["context_length"] = context_length
    for key, value in changes.items():
        if key not in ModelCard.__struct_fields__:
            raise TypeError(f"a model card has no field {key!r}")
        setattr(model.card, key, value)
    if chat_template is not None:
        _use_template(model, Path(chat_template))
    return model


def _open(source: str | Path | None, cache: FileCache, weights: bool) -> LocalModel:
    if source is None or source == "":
        return built_in()
    if isinstance(source, str) and source.startswith(_PACKAGE):
        from dynamo.llm.packages import assemble

        path = assemble(source.removeprefix(_PACKAGE), cache)
    elif isinstance(source, str) and source.startswith(SCHEME) and not _local(source).is_dir():
        path = fetch(source, weights=weights)
    else:
        path = find_path(str(source))
    if path.is_dir():
        from dynamo.llm.checkout import open_checkout

        return open_checkout(path)
    from dynamo.llm.gguf_model import open_gguf

    return open_gguf(path, cache)


def built_in() -> LocalModel:
    """Describe the model without files: bytes as tokens and the plain chat template."""
    card = ModelCard(
        name=BUILT_IN_NAME,
        tokenizer="bytes",
        context_length=BUILT_IN_CONTEXT,
        vocab_size=bytelevel.VOCAB_SIZE,
        eos_token_ids=[bytelevel.EOS_ID],
        bos_token_id=bytelevel.BOS_ID,
        special_tokens={"eos_token": bytelevel.SPECIAL["eos_token"]},
    )
    return LocalModel(card)


def find_path(source: str) -> Path:
    """Return the existing path that `source` names, or say what was looked for."""
    if source.startswith(SCHEME):
        return _local(source)
    path = Path(source.removeprefix(_FILE)).expanduser()
    try:
        if path.exists():
            return path
    except PermissionError as error:
        raise InvalidArgument(f"no permission to read {str(path)!r}") from error
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{source!r} is no usable path: {error}") from error
    raise InvalidArgument(f"there is no model at {str(path)!r}{_hint(source, path)}")


def _local(source: str) -> Path:
    """Where a clone of a model of the hub would lie."""
    return Path(source.removeprefix(SCHEME)).expanduser()


def _hint(source: str, path: Path) -> str:
    folder = path.parent
    if _HUB_NAME.fullmatch(source) and not folder.is_dir():
        return f": if a Hugging Face model is meant, use {SCHEME}{source}"
    if not folder.is_dir():
        return f": the folder {str(folder)!r} does not exist either"
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f": did you mean {str(folder / close[0])!r}?" if close else ""


def _use_template(model: LocalModel, path: Path) -> None:
    try:
        if path.stat().st_size > _TEMPLATE_LIMIT:
            raise InvalidArgument(f"the chat template {str(path)!r} is larger than 1 MB")
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the chat template {str(path)!r} can't be read: {error}") from error
    from dynamo.llm.template import ChatTemplate

    ChatTemplate(source)  # an error in it is told now, not at the first request
    ref = file_ref(path)
    kept = {role: old for role, old in model.card.files.items() if not role.startswith(CHAT_TEMPLATE)}
    model.card.files = {**kept, CHAT_TEMPLATE: ref}
    model.files[ref.digest] = path
