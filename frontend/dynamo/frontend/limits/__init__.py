"""What requests may cost: bytes of bodies, threads, concurrency, and requests that workers died with."""
