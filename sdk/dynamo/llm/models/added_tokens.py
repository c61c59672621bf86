"""The tokens that a `tokenizer_config.json` adds by their numbers, for tokenizers that are converted. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from dynamo.runtime.errors import InvalidArgument

MOST: Final = 65_536
"""Tokens that are added; Gemma's 6,414 are many."""
LONGEST: Final = 1024
_NUMBER: Final = re.compile(r"[0-9]{1,9}")


def stated(settings: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Return objects with a text as `content` by id; what can't be read is left out."""
    given = settings.get("added_tokens_decoder")
    added: dict[int, Mapping[str, Any]] = {}
    for number, token in given.items() if isinstance(given, Mapping) else ():
        about = token if isinstance(token, Mapping) else {"content": token}
        content = about.get("content")
        if isinstance(content, str) and len(content) <= LONGEST and _NUMBER.fullmatch(str(number)[:10]):
            added[int(number)] = about
        if len(added) > MOST:
            raise InvalidArgument(f"the tokenizer's configuration adds more than {MOST} tokens")
    return added
