"""An HTTP server that is wrong in one way, as a component's `command`: `odd_server.py HOW --port PORT`.

`mute` never listens, `failing` answers 500 to everything, `counting` counts 900 tokens in each answer, and `shrinking`
has a smaller context as soon as it was asked something.
"""

from __future__ import annotations

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOW, PORT = sys.argv[1], int(sys.argv[3])
ANSWER = {"choices": [{"index": 0, "text": "hi", "finish_reason": "stop"}]}
COUNTS = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 900 if HOW == "counting" else 1}}


class Handler(BaseHTTPRequestHandler):
    asked = False

    def do_GET(self) -> None:
        context = 512 if HOW == "shrinking" and Handler.asked else 4096
        bodies: dict[str, Any] = {"/health": {}, "/v1/models": {"data": [{"id": "odd", "max_model_len": context}]}}
        self.answer(200 if self.path in bodies else 404, json.dumps(bodies.get(self.path)).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        Handler.asked = True
        self.answer(200, b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in (ANSWER, COUNTS)))

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(500 if HOW == "failing" else status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


if HOW == "mute":
    time.sleep(600)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
