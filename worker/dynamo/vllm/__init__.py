"""`python -m dynamo.vllm`: the original's name for a worker with that engine; see `dynamo.worker.programs`."""
