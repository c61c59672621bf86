"""What the router knows of KV caches: `hashing` names blocks, `index` says which worker holds which. Pure."""
