"""A KV-aware router of its own, for whoever is no frontend of ours: `python -m dynamo.router --endpoint ns.comp.ep`."""
