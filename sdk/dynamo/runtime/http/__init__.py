"""The HTTP server of probes and metrics that every program has, and what it shares with the frontend's."""
