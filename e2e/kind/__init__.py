"""kind with three nodes: on the user's Docker, or on a daemon of its own with a node image made from packages."""
