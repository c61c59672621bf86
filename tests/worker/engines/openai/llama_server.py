"""A real llama-server (llama.cpp's own HTTP server) over a model file: in this process, or as a program.

`python llama_server.py FILE --port PORT [--slots 8]`
"""

from __future__ import annotations

import argparse
import functools
import time
from pathlib import Path
from typing import Any


@functools.cache
def llama_server(path: Path, n_parallel: int = 8, port: int = 0) -> Any:
    """The server of a GGUF file, started once per process; `listening_address` is where it is."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = n_parallel
    params.n_ctx = 4096
    params.cpuparams.n_threads = 1
    params.port = port
    params.verbosity = -1
    return xllamacpp.Server(params)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--slots", type=int, default=8)
    given = parser.parse_args()
    server = llama_server(given.model, given.slots, given.port)
    while server:
        time.sleep(3600)


if __name__ == "__main__":
    main()
