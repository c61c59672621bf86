"""The mock engine's pure parts: time, KV blocks, scheduling. No I/O, no clock, no randomness."""
