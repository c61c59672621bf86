"""What the pool asks of a card as it stands in an instance's record, which may be anything. Pure."""

from __future__ import annotations

from typing import Any

from dynamo.llm.card import card_from_dict
from dynamo.runtime.errors import InvalidArgument


def card_role(data: Any) -> str:
    """The part of the work that a card in a record names; empty where it can't be read."""
    try:
        return card_from_dict(data).role
    except InvalidArgument:
        return ""


def card_digest(data: Any) -> str:
    """The digest of a card as it stands in a record; empty where it can't be read."""
    try:
        return card_from_dict(data).digest
    except InvalidArgument:
        return ""
