"""`python -m dynamo.worker.fetch`: load a worker's model into the cache and end.

Run before a worker starts, where that has a time limit and a download has none (an init container). The worker finds
the files; workers that share a cache load each file once, since who loads it holds a lock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from dynamo.llm.hub.fetch import fetch
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.process.first_process import end_on_sigterm
from dynamo.runtime.process.logs import configure_logging
from dynamo.runtime.process.settings import command, setting
from dynamo.worker.engines import weights_of


@dataclass(frozen=True)
class FetchSettings:
    """Settings of a download."""

    model_path: str = setting(
        "", "hf://ORG/REPO, with @REVISION, :QUANTISATION or /FILE.gguf; required.", env="DYN_MODEL_PATH"
    )
    engine: str = setting("", "The engine that it is for: simulated ones need no weights.", env="DYN_ENGINE")


def run(settings: FetchSettings) -> None:
    """Block until everything is there; what goes wrong is one line on stderr and exit code 1."""
    try:
        configure_logging(0)
        folder = fetch(settings.model_path, weights=weights_of(settings.engine))
    except DynamoException as error:
        raise click.ClickException(error.message) from error
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(f"{settings.model_path} is in {folder}\n")


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m dynamo.worker.fetch`."""
    end_on_sigterm()  # what has come stays, whenever the process ends
    made = command(FetchSettings, run, name="dynamo-fetch", help="Load a model of the hub into the cache.")
    made.main(None if argv is None else list(argv))


if __name__ == "__main__":
    main()
