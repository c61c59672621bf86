"""Writes the references of what programs serve: routes, errors, metrics."""
