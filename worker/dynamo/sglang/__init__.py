"""`python -m dynamo.sglang`: NVIDIA Dynamo's name for a worker with that engine; see `dynamo.worker.programs`."""
