"""A stand-in for huggingface.co that serves folders: `python stand_in_hub.py FOLDER PORT [TOKEN]`, nothing to install.

FOLDER holds `org/repo/files`. With TOKEN, whoever has not got it is refused as the hub refuses for a gated model.
`GET /requests` tells what was asked so far, so that a test can count downloads.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 1 << 16


class Hub(ThreadingHTTPServer):
    """Serves until `shutdown`; `asked` has (method, path, whether a token came)."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0, token: str = "", host: str = "127.0.0.1", pause: float = 0) -> None:
        super().__init__((host, port), _Handler)
        self.folder, self.token, self.pause = folder, token, pause
        self.asked: list[tuple[str, str, bool]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def downloads(self, name: str) -> int:
        """How often a file was sent."""
        with self.lock:
            return sum(1 for method, path, _ in self.asked if method == "GET" and path.endswith(f"/{name}"))


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._send(404, {"error": "not here"})

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _answer(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        if path == "requests":
            with self.server.lock:
                self._send(200, self.server.asked)
            return
        token = self.headers.get("Authorization", "") == f"Bearer {self.server.token}"
        with self.server.lock:
            self.server.asked.append((self.command, path, bool(self.headers.get("Authorization"))))
        parts = path.split("/")
        repo = "/".join(parts[2:4] if parts[:2] == ["api", "models"] else parts[:2])
        folder = self.server.folder / repo
        if not folder.is_dir() or folder == self.server.folder:
            self._refuse(401, "RepoNotFound", "Repository not found")
        elif self.server.token and not token:
            self._refuse(401, "GatedRepo", f"Access to model {repo} is restricted")
        elif parts[:2] == ["api", "models"]:
            self._about(folder, repo, parts[4:])
        else:
            self._file(folder / "/".join(parts[4:]))

    def _about(self, folder: Path, repo: str, rest: list[str]) -> None:
        if rest and rest[-1] not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        names = sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())
        if rest[:1] == ["tree"]:
            self._send(200, [{"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": _oid(folder / n)}
                             for n in names])  # fmt: skip
            return
        self._send(200, {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]})

    def _file(self, file: Path) -> None:
        if not file.is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        data = file.read_bytes()
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if start else 200)
        headers = {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        headers |= {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        for name, value in {**headers, "Content-Length": str(len(data) - start)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._write(data[start:])

    def _write(self, data: bytes) -> None:
        """In pieces, with a pause between them where a slow line is wanted."""
        for begin in range(0, len(data), PIECE):
            self.wfile.write(data[begin : begin + PIECE])
            time.sleep(self.server.pause)

    def _refuse(self, code: int, kind: str, message: str) -> None:
        self._send(code, {"error": message}, {"X-Error-Code": kind, "X-Error-Message": message})

    def _send(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        own = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        for name, value in own.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    with Hub(Path(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:]), host="0.0.0.0") as hub:
        hub.serve_forever()
