"""The first lines of `dynamo` and `dynamo-run`: Ctrl-C ends them without a word, before anything else is imported."""

from __future__ import annotations

from dynamo.cli.ctrl_c import leave_on_ctrl_c


def dynamo() -> None:
    """Run the console script `dynamo`."""
    leave_on_ctrl_c()
    from dynamo.cli.main import main

    main()


def dynamo_run() -> None:
    """Run the console script `dynamo-run`."""
    leave_on_ctrl_c()
    from dynamo.cli.run.main import main

    main()
