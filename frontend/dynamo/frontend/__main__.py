"""`python -m dynamo.frontend`."""

from dynamo.frontend.main import main

if __name__ == "__main__":
    main()
