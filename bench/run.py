"""The benchmark's front door: `python bench/run.py [options]`, and `python bench/run.py exact URL` for exactness.

It only puts the repository's root on the import path and starts `bench.suite` or `bench.exact` in its place.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Become the module that was asked for."""
    arguments = sys.argv[1:]
    module = "bench.suite"
    if arguments[:1] == ["exact"]:
        module, arguments = "bench.exact", arguments[1:]
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


if __name__ == "__main__":
    main()
