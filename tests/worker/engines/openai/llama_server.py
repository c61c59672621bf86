"""A real llama-server (llama.cpp's own HTTP server), in this process, over a model file."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any


@functools.cache
def llama_server(path: Path, n_parallel: int = 8) -> Any:
    """The server of a GGUF file, started once per process; `listening_address` is where it is."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = n_parallel
    params.n_ctx = 4096
    params.cpuparams.n_threads = 1
    params.port = 0
    params.verbosity = -1
    return xllamacpp.Server(params)
