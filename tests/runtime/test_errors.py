"""The error tree: codes travel, verdicts are facts of the class."""

from __future__ import annotations

import pytest

from dynamo.runtime import errors
from dynamo.runtime.errors import DynamoException, Unknown, from_code

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DynamoException) and kind is not DynamoException
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_code_is_read_back(kind: type[DynamoException]) -> None:
    """What one side raises, the other side raises too, with its message and verdict."""
    again = from_code(kind.code, "why")
    assert type(again) is kind
    assert again.message == "why"
    assert again.retryable is kind.retryable


def test_codes_are_a_contract() -> None:
    """Codes and verdicts are fixed: other versions read them."""
    assert {kind.code: kind.retryable for kind in KINDS} == {
        "bad_request": False,
        "no_instances": True,
        "unreachable": True,
        "timeout": True,
        "draining": True,
        "full": True,
        "worker_lost": True,
        "incomplete": True,
        "shutdown": True,
        "engine_error": False,
        "version": False,
        "cancelled": False,
        "deadline": False,
        "unknown": False,
    }


def test_a_code_of_a_later_version() -> None:
    """An unknown code is an error that nobody retries."""
    assert isinstance(from_code("news", "x"), Unknown)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_without_a_message_still_says_something(kind: type[DynamoException]) -> None:
    """The class's own sentence stands in."""
    assert kind().message.endswith(".")
