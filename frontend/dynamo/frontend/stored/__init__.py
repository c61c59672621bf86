"""Responses that are kept for a while, and those that run in the background: here, or in another frontend process."""
