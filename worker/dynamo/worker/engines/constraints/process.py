"""A process that compiles constraints for a worker (`pool.py`): requests on its input, answers on stdout.

It may crash, loop or grow: it has bounds of the system's, and its worker makes another one. Its thread has a stack
smaller than any engine's, so that what passes here doesn't overflow there.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
import threading
from typing import Any, Final

import msgspec

from dynamo.runtime.errors import InvalidArgument
from dynamo.worker.engines.constraints.checks import COMPILE_SECONDS, COMPILED, bounded, lark_of, matcher_of, try_out
from dynamo.worker.engines.constraints.walk import written

STACK: Final = 1024 * 1024
"""Threads of Rust programs have twice as much, llama.cpp's eight times."""
MEMORY: Final = 2 * 1024 * 1024 * 1024
LENGTH: Final = struct.Struct(">I")
CPU_SECONDS: Final = 2 * COMPILE_SECONDS
"""Within one request; then the system ends the process, which can't be asked to look at a clock while it compiles."""
SEED: Final = "seed"
"""Beside a constraint for the mocker: the answer is drawn by it."""
ROOM: Final = "room"
"""Beside it too: the tokens that the answer may have, so that it has an end by then where it can."""
WRITTEN: Final = "written"
"""What the mocker gets in place of a constraint: an answer that keeps to it."""
WHOLE: Final = "whole"
"""That answer isn't cut."""


def compiled(engine: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what `engine` is to be given in place of what a client wrote; raises what the client hears."""
    kind = bounded(wanted)
    if engine not in ("llamacpp", "mistralrs", "mocker"):
        return wanted  # engines that compile in processes of their own, or not at all
    grammar = lark_of(wanted, gbnf=engine != "mistralrs")
    try_out(kind, grammar)
    if engine == "mocker":
        text, whole = written(matcher_of(grammar), kind, wanted.get(SEED, 0), wanted.get(ROOM, 0))
        return {WRITTEN: text, WHOLE: whole}
    return {COMPILED: grammar} if engine == "llamacpp" else {kind: wanted[kind]}


def answer(data: bytes) -> bytes:
    """Return the answer to one request: `[true, what to give the engine]` or `[false, what is wrong]`."""
    engine, wanted = msgspec.msgpack.decode(data)
    try:
        return msgspec.msgpack.encode((True, compiled(engine, wanted)))
    except InvalidArgument as error:
        return msgspec.msgpack.encode((False, error.message[:1000]))
    except Exception as error:  # whatever the library makes of a text is the text's fault
        return msgspec.msgpack.encode((False, f"guided decoding: {type(error).__name__}: {str(error)[:500]}"))


def main() -> None:
    """Serve until the input ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_serve)
    thread.start()
    thread.join()


def _serve() -> None:
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    while len(head := source.read(LENGTH.size)) == LENGTH.size:
        data = source.read(LENGTH.unpack(head)[0])
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        made = answer(data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(LENGTH.pack(len(made)) + made)
        sink.flush()


if __name__ == "__main__":
    main()
