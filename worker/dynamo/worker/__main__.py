"""`python -m dynamo.worker`."""

from dynamo.runtime.process.first_process import end_on_sigterm

if __name__ == "__main__":
    end_on_sigterm()  # before all that takes long to import
    from dynamo.worker.main import main

    main()
