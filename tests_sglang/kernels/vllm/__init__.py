"""Where SGLang looks for the one kernel that it lacks on a CPU without its own CPU kernels, which PyPI doesn't have."""
