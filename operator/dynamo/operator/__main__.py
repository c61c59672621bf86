"""`python -m dynamo.operator`."""

from dynamo.operator.main import main

if __name__ == "__main__":
    main()
