"""`python -m dynamo.operator`."""

import os
import signal

if os.getpid() == 1:
    # The first process of a container doesn't get a SIGTERM that it has no handler for: a pod that is deleted while
    # it starts would stay for all of its grace. Until `main` handles it, it ends us as it ends any other process.
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))

from dynamo.operator.main import main

if __name__ == "__main__":
    main()
