"""The KV router for programs, and its names of older versions."""
