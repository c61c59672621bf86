"""What workers say of their KV caches and load, what routers make of it, and what routers tell each other."""
