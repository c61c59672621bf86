"""What the cluster holds: watched, kept in memory, read, and compared with what a plan wants."""
