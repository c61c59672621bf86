"""TensorRT-LLM, by its Python interface."""
