"""A user's `generate` as an engine: what it is given, how it is called, what it may yield; `adapting.py` joins them."""
