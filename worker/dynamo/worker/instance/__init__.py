"""One instance: an engine served at an endpoint, with its health, load, metrics and group of nodes."""
