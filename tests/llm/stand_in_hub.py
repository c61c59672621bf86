"""A stand-in for huggingface.co that serves folders: `python stand_in_hub.py FOLDER PORT [TOKEN]`, nothing to install.

FOLDER holds `org/repo/files`. It answers what the hub's library asks: about a model and its revisions, its tree
(with git's and LFS' names of each file), searches, and files. Large files are sent by a second host name, to which no
token may go, as the hub's content network does. With TOKEN, whoever has not got it is refused as for a gated model.
`Fault`s break what it sends; `loads` counts the bytes that left. `GET /requests` tells what was asked so far.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PIECE = 1 << 16
LARGE = (".safetensors", ".gguf", ".bin", ".model")
"""What lies in LFS."""
ENDLESS = 1 << 28
"""Bytes after which even the stand-in has enough."""
PAGE = 50
"""Entries of a tree that one answer has."""


@dataclass
class Fault:
    """What goes wrong the next `times` times that a file is sent."""

    name: str
    """Of the file; `api`: of every question about a model."""
    times: int = 1
    status: int = 0
    """An error instead of the file; 429 comes with `Retry-After: 1`, 302 leads to where it comes from."""
    cut_at: int | None = None
    """The connection ends after that many bytes of the file."""
    hold_at: int | None = None
    """Nothing more comes after that many bytes until `resume` is set."""
    resume: threading.Event = field(default_factory=threading.Event)
    longer_by: int = 0
    """The file pretends to have another length."""
    damage: bool = False
    """One of its bytes is another."""
    whole: bool = False
    """It comes from its beginning, whatever was asked."""
    endless: bool = False
    """It says no length, and goes on behind its end."""


@dataclass
class Load:
    """One answer with (a part of) a file."""

    name: str
    start: int
    sent: int = 0
    ended: bool = False


class Hub(ThreadingHTTPServer):
    """Serves until `shutdown`; `asked` has (method, path, whether a token came)."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder: Path, port: int = 0, token: str = "", host: str = "127.0.0.1", pause: float = 0) -> None:
        super().__init__((host, port), _Handler)
        self.folder, self.token, self.pause = folder, token, pause
        self.gated = True
        """With a token: whether the model's existence is told to whoever has not got it."""
        self.asked: list[tuple[str, str, bool]] = []
        self.loads: list[Load] = []
        self.faults: list[Fault] = []
        self.odd = False
        """Searches and revisions are answered in another shape, as mirrors do."""
        self.lock = threading.Lock()
        self.digests: dict[tuple[Path, str], str] = {}

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def downloads(self, name: str) -> int:
        """How often a file was sent, or a part of it."""
        with self.lock:
            return sum(load.name == name for load in self.loads)

    def sent(self, name: str) -> int:
        """How many bytes of a file left."""
        with self.lock:
            return sum(load.sent for load in self.loads if load.name == name)

    def fault(self, name: str) -> Fault | None:
        """The next thing to go wrong with a file, taken from the list."""
        with self.lock:
            planned = next((fault for fault in self.faults if fault.name == name and fault.times > 0), None)
            if planned is not None:
                planned.times -= 1
            return planned

    def handle_error(self, *_: Any) -> None:
        """A client that was killed is no error."""


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
        path, _, query = self.path.partition("?")
        path = unquote(path).strip("/")
        if path == "requests":
            with self.server.lock:
                self._send(200, self.server.asked)
            return
        with self.server.lock:
            self.server.asked.append((self.command, path, bool(self.headers.get("Authorization"))))
        if path == "api/models":
            self._search(parse_qs(query))
        elif path.startswith("cdn/"):
            self._content(self.server.folder / path.removeprefix("cdn/"))
        else:
            self._of_a_model(path.split("/"), parse_qs(query))

    def _of_a_model(self, parts: list[str], query: dict[str, list[str]]) -> None:
        about = parts[:2] == ["api", "models"]
        repo, rest = "/".join(parts[2:4] if about else parts[:2]), parts[4:] if about else parts[2:]
        folder = self.server.folder / repo
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        given = given if kind == "Bearer" else ""  # a mirror's password is not looked at
        fault = self.server.fault("api") if about else None
        if fault is not None:
            self._refuse(fault.status, "", "Too bad", self._with(fault.status))
        elif not folder.is_dir() or folder == self.server.folder:
            self._refuse(401 if not given else 404, "RepoNotFound", "Repository not found")
        elif self.server.token and given and given != self.server.token:
            self._refuse(*self._wrong_token(given, repo))
        elif self.server.token and not given:
            self._refuse(401, *(("GatedRepo", f"Access to model {repo} is restricted") if self.server.gated
                                else ("RepoNotFound", "Repository not found")))  # fmt: skip
        elif about:
            self._about(folder, repo, rest, query)
        elif rest[0] == "resolve":
            self._file(folder / "/".join(rest[2:]), rest[1])
        else:
            self._refuse(404, "", "no such page")

    def _wrong_token(self, given: str, repo: str) -> tuple[int, str, str]:
        """One that is none, or one of somebody who was not let in."""
        if given.endswith("_stranger"):
            return 403, "GatedRepo", f"Access to model {repo} is restricted and you are not in the authorized list"
        return 401, "", "Invalid credentials in Authorization header"

    def _search(self, query: dict[str, list[str]]) -> None:
        words = [word.lower() for key in ("search", "author") for word in query.get(key, [])]
        if self.server.odd:
            self._send(200, [1, None, "x"])
            return
        repos = [str(path.relative_to(self.server.folder)) for path in sorted(self.server.folder.glob("*/*"))]
        self._send(200, [{"id": repo} for repo in repos if all(word in repo.lower() for word in words)])

    def _about(self, folder: Path, repo: str, rest: list[str], query: dict[str, list[str]]) -> None:
        if rest == ["refs"]:
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}
            tag = {"name": "v1.0", "ref": "refs/tags/v1.0", "targetCommit": COMMIT}
            self._send(200, {"branches": None if self.server.odd else [branch], "tags": [tag], "converts": []})
        elif rest and rest[1] not in ("main", "v1.0", COMMIT):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {rest[1]}")
        elif rest[:1] == ["tree"]:
            self._tree(folder, int(query.get("cursor", ["0"])[0]))
        else:
            names = [{"rfilename": entry["path"]} for entry in self._entries(folder)]
            self._send(200, {"id": repo, "sha": COMMIT, "siblings": names})

    def _tree(self, folder: Path, begin: int) -> None:
        """A page of it, with a link to the next one."""
        entries = self._entries(folder)
        here = self.path.partition("?")[0]
        more = f'<{self.server.url}{here}?recursive=True&cursor={begin + PAGE}>; rel="next"'
        self._send(200, entries[begin : begin + PAGE], {"Link": more} if len(entries) > begin + PAGE else {})

    def _entries(self, folder: Path) -> list[dict[str, Any]]:
        results = []
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = {"type": "file", "path": str(file.relative_to(folder)), "size": file.stat().st_size,
                     "oid": self._oid(file, "git")}  # fmt: skip
            if file.suffix in LARGE:
                entry["lfs"] = {"oid": self._oid(file, "sha256"), "size": entry["size"], "pointerSize": 134}
            results.append(entry)
        return results

    def _file(self, file: Path, revision: str) -> None:
        if not file.is_file():
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif revision not in ("main", "v1.0", COMMIT):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif file.suffix in LARGE:
            there = quote(str(file.relative_to(self.server.folder)))
            host = self.headers.get("Host", "").replace("127.0.0.1", "localhost")
            own = {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(file.stat().st_size),
                   "X-Linked-Etag": f'"{self._oid(file, "sha256")}"',
                   "Location": f"http://{host}/cdn/{there}?signature=x"}  # fmt: skip
            self._send(302, {}, own)
        else:
            self._content(file)

    def _content(self, file: Path) -> None:
        size, fault = file.stat().st_size, self.server.fault(file.name) if self.command == "GET" else None
        if fault is not None and fault.status:
            self._refuse(fault.status, "", "Too bad", self._with(fault.status))
            return
        fault = fault or Fault("")
        begin, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = (0, size) if fault.whole else (int(begin), min(size, int(last or size) + 1))
        partial = bool(self.headers.get("Range")) and not fault.whole
        self.send_response(206 if partial else 200)
        headers = {"ETag": f'"{self._oid(file, "git")}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes",
                   "Content-Length": str(end - start + fault.longer_by)}  # fmt: skip
        if fault.endless:
            del headers["Content-Length"]
            headers["Connection"] = "close"
        if partial:
            headers["Content-Range"] = f"bytes {start}-{end - 1 + fault.longer_by}/{size + fault.longer_by}"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self._write(file, start, end, fault)

    def _write(self, file: Path, start: int, end: int, fault: Fault) -> None:
        """In pieces, with a pause between them where a slow line is wanted."""
        load = Load(file.name, start)
        with self.server.lock:
            self.server.loads.append(load)
        edges = sorted({at for at in (fault.cut_at, fault.hold_at) if at is not None and start <= at < end})
        at = start
        with file.open("rb") as source, contextlib.suppress(OSError):
            source.seek(start)
            while at < end:
                if at == fault.cut_at:
                    self.close_connection = True
                    return
                if at == fault.hold_at:
                    fault.resume.wait(60)
                stop = min([end, at + PIECE, *(edge for edge in edges if edge > at)])
                piece = source.read(stop - at)
                self.wfile.write(bytes([piece[0] ^ 1]) + piece[1:] if fault.damage and at == start else piece)
                at = stop
                load.sent += len(piece)
                time.sleep(self.server.pause)
            while fault.endless and load.sent < ENDLESS:
                load.sent += self.wfile.write(bytes(PIECE))
            load.ended = True

    def _with(self, code: int) -> dict[str, str]:
        return {429: {"Retry-After": "1"}, 302: {"Location": self.path}}.get(code, {})

    def _refuse(self, code: int, kind: str, message: str, more: dict[str, str] | None = None) -> None:
        own = {"X-Error-Message": message} | ({"X-Error-Code": kind} if kind else {})
        self._send(code, {"error": message}, own | (more or {}))

    def _send(self, code: int, body: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        own = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        for name, value in own.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _oid(self, file: Path, kind: str) -> str:
        """Git's name of a file (sha1 of a header and its content), or LFS' (sha256)."""
        with self.server.lock:
            known = self.server.digests.get((file, kind))
        if known is None:
            make: Callable[[], Any] = hashlib.sha256 if kind == "sha256" else hashlib.sha1
            state = make()
            if kind == "git":
                state.update(b"blob %d\0" % file.stat().st_size)
            with file.open("rb") as source:
                while piece := source.read(1 << 20):
                    state.update(piece)
            known = str(state.hexdigest())
            with self.server.lock:
                self.server.digests[file, kind] = known
        return known


if __name__ == "__main__":
    with Hub(Path(sys.argv[1]), int(sys.argv[2]), "".join(sys.argv[3:]), host="0.0.0.0") as hub:
        hub.serve_forever()
