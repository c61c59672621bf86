"""The worker: one engine, served as one instance of an endpoint."""
