"""A user's own Python file as an engine: loading and judging it, its mistakes in words, what it is given and gives."""
