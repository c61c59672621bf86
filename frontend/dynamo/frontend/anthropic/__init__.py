"""Bodies and errors of Anthropic's Messages API."""
