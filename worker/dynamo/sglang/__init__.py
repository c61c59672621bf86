"""`python -m dynamo.sglang`: the original's name for a worker with that engine; see `dynamo.worker.programs`."""
