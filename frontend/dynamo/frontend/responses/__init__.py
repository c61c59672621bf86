"""What clients are sent: SSE streams and JSON bodies, with tool calls, log probabilities and embeddings."""
