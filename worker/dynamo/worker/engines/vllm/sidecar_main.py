"""A command beside a worker, tied to its life: `python -m dynamo.worker.engines.vllm.sidecar_main PID COMMAND …`.

vLLM's own is run in this process, so that what it starts is tied, too. `sidecar.py` starts it.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from dynamo.worker.engines.vllm.parent_death import tether, tethering


def main() -> None:
    """Tie this process to the worker, then be the command."""
    parent, *command = sys.argv[1:]
    tether(int(parent))
    if command[0] == "vllm":
        _vllm(command)
    else:
        _other(command)


def _vllm(command: list[str]) -> None:
    sys.argv = command
    with tethering():
        # Not by vLLM's own `main`, which wants the version of a package called vllm: that for CPUs is called otherwise.
        from vllm.entrypoints.cli.serve import ServeSubcommand
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        parser, serve = FlexibleArgumentParser(prog=command[0]), ServeSubcommand()
        serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
        given = parser.parse_args(command[1:])
        serve.validate(given)
        serve.cmd(given)


def _other(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"can't start {command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
