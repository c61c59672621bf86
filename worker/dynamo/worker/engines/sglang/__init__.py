"""SGLang, by its Python engine."""
