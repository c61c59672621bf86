"""Facts of this machine and of its runs, collected for the rules of `dynamo.cli.diagnosis`."""
