"""`python -m dynamo.mocker`."""

import os
import signal

if os.getpid() == 1:
    # As in `dynamo.worker`: the first process of a container doesn't get a SIGTERM that it has no handler for.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from dynamo.worker.programs.entry import main

if __name__ == "__main__":
    main("mocker")
