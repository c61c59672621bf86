"""llama.cpp, by xllamacpp."""
