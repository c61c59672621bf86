"""Start llama.cpp's own HTTP server out of the package xllamacpp, with the words of `llama-server`.

It stands in for llama.cpp's published image where no registry can be asked. Nothing of this project is in it.
"""

from __future__ import annotations

import argparse
import signal
import sys

import xllamacpp


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="llama-server")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--model", default="/models/gemma.gguf")
    parser.add_argument("--alias", default="gemma-3-270m")
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--parallel", type=int, default=4)
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = given.model, {given.alias}
    params.hostnames, params.port = [given.host], given.port
    params.n_ctx, params.n_parallel = given.ctx_size, given.parallel
    params.cpuparams.n_threads = 1
    params.endpoint_metrics = True
    waited = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    server = xllamacpp.Server(params)
    sys.stdout.write(f"listening on {server.listening_address}\n")
    sys.stdout.flush()
    signal.sigwait(waited)


if __name__ == "__main__":
    main()
