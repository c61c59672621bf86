"""mistral.rs, by its Python module."""
