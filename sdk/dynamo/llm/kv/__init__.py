"""KV-aware routing, decided: block hashes, who holds which blocks, what runs where, and what a choice costs. Pure."""
