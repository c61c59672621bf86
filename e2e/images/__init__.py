"""Container images for machines with Docker and for machines without a registry: `python -m e2e.images`."""
