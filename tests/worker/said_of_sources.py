"""`python said_of_sources.py ENGINE SOURCE...`: prints what is said of each source as a list in JSON."""

from __future__ import annotations

import json
import sys

from dynamo.llm.hub.fetch import fetch
from dynamo.runtime.errors import DynamoException
from dynamo.worker.engines import weights_of

if __name__ == "__main__":
    lines = []
    for source in sys.argv[2:]:
        try:
            lines.append(f"loaded {fetch(source, weights=weights_of(sys.argv[1]))}")
        except DynamoException as error:
            lines.append(error.message)
    json.dump(lines, sys.stdout)
