"""`dynamo` as a user runs it, against a real API server without nodes."""
