"""What the operator generates, on a real API server: accepted, at rest, within the Pod Security Standard."""
