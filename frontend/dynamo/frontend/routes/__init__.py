"""The HTTP routes: `generate.py` is the hot path (plain ASGI), the others are ordinary FastAPI."""
