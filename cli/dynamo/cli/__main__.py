"""`python -m dynamo.cli`."""

from dynamo.cli.start import dynamo

if __name__ == "__main__":
    dynamo()
