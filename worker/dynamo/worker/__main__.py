"""`python -m dynamo.worker`."""

from dynamo.worker.main import main

main()
