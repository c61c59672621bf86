"""Pipelines from files of other systems: `dynamo convert`."""
