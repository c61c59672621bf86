"""The command line: `dynamo-run` for one model, `dynamo` for pipeline files. Composes the other portions."""
