"""`python -m e2e.kind up|down|exec COMMAND ...|gpus`: the cluster without the tests."""

from __future__ import annotations

import os
import sys

from e2e.kind import cluster
from e2e.kind.places import Places
from e2e.kind.steps import StepError, say


def main(words: list[str]) -> int:
    """Carry out one verb; the exit status."""
    places = Places.of(os.environ)
    try:
        match words:
            case ["up"]:
                cluster.up(places)
            case ["down"]:
                cluster.down(places)
            case _:
                say(str(__doc__))
                return 2
    except StepError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
