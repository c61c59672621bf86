"""Routes over what is stored: responses and conversations."""
