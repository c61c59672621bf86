"""What `make test` does for seconds, for as long as it takes to see more."""
