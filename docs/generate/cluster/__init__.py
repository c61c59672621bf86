"""Writes the references of what runs in a cluster: pipelines, their status, the charts."""
