"""Bodies of OpenAI's API: their structs, sizes, defaults, and what they ask for."""
