"""vLLM, in the worker's process, with sidecars on further nodes."""
