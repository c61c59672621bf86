"""Models as files: checkouts, GGUF, Python packages, and the tokenizers that they bring."""
