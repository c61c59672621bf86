"""A stand-in for frontend and worker in tests of the local executor: says ready, and misbehaves on request.

`FAKE` in the environment holds a JSON object: part kind -> what to do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def behaviour(kind: str) -> dict[str, Any]:
    return dict(json.loads(os.environ.get("FAKE", "{}")).get(kind, {}))


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"data": [{"id": option("--namespace")}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def main(kind: str) -> None:
    plan = behaviour(kind)
    sys.stderr.write(f"INFO {kind} starts\n")
    if "fail" in plan and plan.get("fail_at", "") in option("--endpoint"):
        sys.stderr.write(f"ERROR {plan['fail']}\n")
        raise SystemExit(plan.get("code", 1))
    if "raise" in plan:
        raise ValueError(plan["raise"])
    if plan.get("child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: None if plan.get("deaf") else over.set())
    announced: dict[str, Any] = {"instance": "x"}
    if kind == "frontend":
        server = ThreadingHTTPServer((option("--http-host"), int(option("--http-port"))), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        announced = {"url": f"http://{option('--http-host')}:{server.server_address[1]}"}
    sys.stdout.write(f"ready {json.dumps(announced)}\n")
    sys.stdout.flush()
    while not over.wait(0.1):
        continue
    sys.stderr.write(f"INFO {kind} ends\n")


if __name__ == "__main__":
    main(os.environ["FAKE_KIND"])
