"""Ids of a conversation's items. Apart from the routes, since answers need them and FastAPI takes long to import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dynamo.frontend.openai.chat_builder import ChatBuilder
from dynamo.frontend.openai.responses_input import Item, add_items, items_of, kept

PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}
NewId = Callable[[str], str]


def encoded_items(items: Sequence[Item], new_id: NewId, *, check: bool = False) -> list[bytes]:
    """Return items as a conversation keeps them; raises the 400 of what no conversation can have."""
    own = items_of(items)
    if check:
        add_items(ChatBuilder(), own, "items")
    ids = (new_id(PREFIXES.get(str(item.get("type")), "item")) for item in own)
    return [msgspec.json.encode(kept(item) | {"id": name}) for item, name in zip(own, ids, strict=True)]
