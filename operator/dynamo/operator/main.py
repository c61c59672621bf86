"""`dynamo-operator`: will run the reconciler; so far it says that it isn't built."""

from __future__ import annotations

import sys


def main() -> None:
    """Say what there is instead, and fail."""
    sys.stderr.write(
        "dynamo-operator is not built yet: run pipelines on this machine with `dynamo up FILE`, "
        "or check them with `dynamo validate FILE`.\n"
    )
    raise SystemExit(1)
