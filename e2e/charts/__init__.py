"""The charts, rendered by a real helm."""
