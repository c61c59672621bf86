"""`python -m dynamo.trtllm`: the original's name for a worker with that engine; see `dynamo.worker.programs`."""
