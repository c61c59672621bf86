"""The tokens that a `tokenizer_config.json` adds by their numbers, for tokenizers that are converted. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def stated(settings: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """By id, objects with a text as `content`; what can't be read is left out."""
    given = settings.get("added_tokens_decoder")
    found: dict[int, Mapping[str, Any]] = {}
    for number, token in given.items() if isinstance(given, Mapping) else ():
        about = token if isinstance(token, Mapping) else {"content": token}
        if isinstance(about.get("content"), str) and _NUMBER.fullmatch(str(number)):
            found[int(number)] = about
    return found
