"""`python -m dynamo.cli.run`."""

from dynamo.cli.run.main import main

if __name__ == "__main__":
    main()
