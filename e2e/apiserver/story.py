"""What every pipeline of a fault test lives through, and how it stood in between: `lived(lanes) -> Story`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from e2e.apiserver.alike import unlike
from e2e.apiserver.lanes import FIRST, SECOND, Lanes


class Story(NamedTuple):
    """A creation and an edit: each lane's normal form after it, the writes that the first took, each one's seconds."""

    ends: list[list[dict[str, Any]]]
    writes: list[int]
    seconds: list[list[float]]

    def unlike(self, whole: Story) -> list[list[str]]:
        """Where a lane differs from a run that nothing befell."""
        return [paths for ends, others in zip(self.ends, whole.ends, strict=True) for end in ends
                if (paths := unlike(end, others[0]))]  # fmt: skip


def lived(lanes: Lanes, before_each: Callable[[], object] = lambda: None) -> Story:
    """Until all lanes are ready and at rest, twice."""
    story = Story([], [], [])
    for spec in (FIRST, SECOND):
        before_each()
        before = lanes.written()
        lanes.apply(spec)
        story.seconds.append(lanes.until_ready())
        story.ends.append(list(lanes.normal().values()))
        story.writes.append(lanes.written()[0] - before[0])
    return story
