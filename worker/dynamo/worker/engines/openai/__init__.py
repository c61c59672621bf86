"""Any OpenAI-compatible server as an engine: vLLM, SGLang, llama-server, ollama or another, behind our routing."""
