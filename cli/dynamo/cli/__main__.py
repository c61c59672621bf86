"""`python -m dynamo.cli`."""

from dynamo.cli.main import main

if __name__ == "__main__":
    main()
