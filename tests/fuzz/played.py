"""A site that is played, for tests of the watch: `python tests/fuzz/played.py PORT`; it does to others what it is told.

`POST /do?stall=0.5` holds its loop, `grow` takes megabytes for as long as the request lasts, `keep` for ever, `say`
writes a line to its log, `open` opens files, `exit` ends it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from urllib.parse import parse_qsl, urlsplit

KEPT: list[object] = []


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests until the client leaves."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            target = head.split(b" ")[1].decode()
            length = next(
                (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"), 0
            )
            await reader.readexactly(length)
            if target.startswith("/v1/completions"):
                await stream(writer)
                return
            do(dict(parse_qsl(urlsplit(target).query)))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    except (EOFError, OSError):
        return
    finally:
        writer.close()


def do(asked: dict[str, str]) -> None:
    """Do what a hostile request might make a server do."""
    if "stall" in asked:
        time.sleep(float(asked["stall"]))
    if "grow" in asked:
        taken = bytearray(int(asked["grow"]) << 20)
        taken[::4096] = b"x" * len(taken[::4096])
    if "keep" in asked:
        KEPT.append(b"x" * (int(asked["keep"]) << 20))
    if "open" in asked:
        KEPT.extend(os.dup(0) for _ in range(int(asked["open"])))
    if "say" in asked:
        sys.stderr.write(asked["say"] + "\n")
        sys.stderr.flush()
    if "exit" in asked:
        os._exit(int(asked["exit"]))


async def stream(writer: asyncio.StreamWriter) -> None:
    """Send an event each 20 ms, for two seconds."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
    for _ in range(100):
        writer.write(b"data: {}\n\n")
        await writer.drain()
        await asyncio.sleep(0.02)
    writer.write(b"data: [DONE]\n\n")


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
