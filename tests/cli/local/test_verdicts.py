"""What the parts' states add up to."""

from __future__ import annotations

import pytest

from dynamo.cli.local.process_lifecycle import State
from dynamo.cli.local.verdicts import Seen, can_serve, hopeless, should_greet

LETTERS = {"R": State.READY, "S": State.STARTING, "B": State.BACKING_OFF, "F": State.FAILED}


def seen(text: str) -> list[Seen]:
    """`R|RS F`: frontends, then the workers of each component."""
    frontends, _, workers = text.partition("|")
    parts = [Seen("frontend", "frontend", LETTERS[c]) for c in frontends]
    components = workers.split()
    return parts + [Seen("worker", str(i), LETTERS[c]) for i, w in enumerate(components) for c in w]


@pytest.mark.parametrize(
    ("text", "serves", "greets", "lost"),
    [
        ("R|R", True, True, False),
        ("S|R", False, False, False),
        ("R|S", False, False, False),
        ("R|RS", True, False, False),
        ("R|RB", True, False, False),
        ("R|RF", True, True, False),
        ("R|R S", False, False, False),
        ("R|R F", True, True, False),
        ("R|", True, True, False),
        ("R|FF", False, False, True),
        ("F|R", False, False, True),
        ("R|FB", False, False, False),
    ],
)
def test_verdicts(text: str, serves: bool, greets: bool, lost: bool) -> None:
    """Serves with a frontend and a worker of each component; greets at once only if nothing more is coming."""
    parts = seen(text)
    assert (can_serve(parts), should_greet(parts, 0.0), hopeless(parts)) == (serves, greets, lost)
    assert should_greet(parts, 10.0) is serves
