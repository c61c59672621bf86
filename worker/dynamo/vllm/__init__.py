"""`python -m dynamo.vllm`: NVIDIA Dynamo's name for a worker with that engine; see `dynamo.worker.programs`."""
