"""The files that a model's chat templates come from: Jinja, and JSON that holds some."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from dynamo.llm.model_card import CHAT_TEMPLATE, CHAT_TEMPLATE_JSON, TOKENIZER_CONFIG, ModelCard
from dynamo.llm.processing.chat_template import DEFAULT_TEMPLATE, SWITCHED_TEMPLATE, ChatTemplate
from dynamo.llm.tokenizer import card_file
from dynamo.runtime.errors import InvalidArgument

LARGEST_JSON: Final = 1 << 24
"""Bytes of a configuration; the largest known ones have 2 MB."""


def load_template(card: ModelCard, files: Mapping[str, Path]) -> ChatTemplate:
    """Open the card's templates: Jinja files before `chat_template.json` before the tokenizer's configuration."""
    default: str | None = None
    named: dict[str, str] = {}
    for role in (TOKENIZER_CONFIG, CHAT_TEMPLATE_JSON):  # the later one wins
        if path := card_file(card, files, role):
            own, more = templates_of(read_json(path))
            default, named = own or default, {**named, **more}
    if path := card_file(card, files, CHAT_TEMPLATE):
        # A template of its own replaces all that the configuration says, for tools too.
        default, named = _read(path), {}
    for role in card.files:
        if role.startswith(f"{CHAT_TEMPLATE}.") and (path := card_file(card, files, role)):
            named[role.removeprefix(f"{CHAT_TEMPLATE}.")] = _read(path)
    plain = SWITCHED_TEMPLATE if card.tokenizer == "bytes" else DEFAULT_TEMPLATE
    return ChatTemplate(default, named=named, special_tokens=card.special_tokens, plain=plain)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object, or say in a sentence why not."""
    try:
        if (size := path.stat().st_size) > LARGEST_JSON:
            raise InvalidArgument(f"{str(path)!r} has {size} bytes: at most {LARGEST_JSON} are read")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidArgument(f"{str(path)!r} is no valid JSON (is it cut off?): {error}") from error
    except RecursionError as error:
        raise too_deep(path) from error
    if not isinstance(data, dict):
        raise InvalidArgument(f"{str(path)!r} must hold a JSON object")
    return data


def templates_of(settings: Mapping[str, Any]) -> tuple[str | None, dict[str, str]]:
    """Return the default template and the named ones of a tokenizer configuration."""
    value = settings.get("chat_template")
    if isinstance(value, str):
        return value, {}
    named = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("template"), str):
            named[str(entry.get("name"))] = entry["template"]
    return named.pop("default", None), named


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the chat template {path.name!r} can't be read: {error}") from error


def too_deep(path: Path) -> InvalidArgument:
    """Say of a file that its JSON is nested beyond what is read."""
    return InvalidArgument(f"{str(path)!r} is nested too deeply to be read: get the model from elsewhere")
