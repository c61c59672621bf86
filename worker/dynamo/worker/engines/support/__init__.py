"""What several engines need: request threads, the way back to the event loop, open requests, checks."""
