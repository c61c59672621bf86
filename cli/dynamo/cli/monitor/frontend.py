"""A frontend, asked for its metrics and its workers: bounded in time and size, since anything may answer at a URL."""

from __future__ import annotations

import time
from typing import Final
from urllib.parse import quote

import httpx2
import msgspec

from dynamo.cli.monitor.load import WorkerList
from dynamo.cli.monitor.rates import Scrape, parse
from dynamo.frontend.http.guard import REQUESTS, WORKERS
from dynamo.frontend.request_log.timeline import Explanation
from dynamo.runtime.process.printable import visible

_MOST_BYTES: Final = 16 << 20
_SECONDS: Final = 5.0
_KEY: Final = "set OPENAI_API_KEY, or name another by --key-env"


class _Message(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _Message


class FrontendError(Exception):
    """It can't be read; the message says why, and what to do."""


class Frontend:
    """One frontend by its URL, without `/v1`."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url
        # What is sent is counted as it comes: packed, a few kilobytes could become gigabytes.
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._client = httpx2.Client(timeout=_SECONDS, headers=headers, trust_env=False)

    def close(self) -> None:
        """Close its connection."""
        self._client.close()

    def scrape(self) -> Scrape:
        """Return its metrics now; raises `FrontendError`."""
        status, body = self._get("/metrics")
        if status in (401, 403):
            raise FrontendError(f"{self.url} asks for an API key: {_KEY}")
        if status != 200:
            raise FrontendError(
                f"{self.url}/metrics answers {status}: name a frontend's URL; one with private system routes has "
                "its metrics on the system port"
            )
        try:
            return parse(body.decode("utf-8", "replace"), time.monotonic())
        except ValueError as error:
            raise FrontendError(f"{self.url}/metrics is no list of metrics ({error})"[:200]) from None

    def workers(self) -> WorkerList:
        """Return its workers; none where its console is off, or answers something else. Raises `FrontendError`."""
        status, body = self._get(WORKERS)
        try:
            return msgspec.json.decode(body, type=WorkerList) if status == 200 else WorkerList()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return WorkerList()

    def request(self, request_id: str) -> tuple[bytes, Explanation]:
        """Return what became of a request, as it came and as read; raises `FrontendError`."""
        status, body = self._get(REQUESTS + quote(request_id, safe=""))
        if status in (401, 403):
            raise FrontendError(f"{self.url} asks for an API key: {_KEY}")
        try:
            if status == 200:
                return body, msgspec.json.decode(body, type=Explanation)
            message = msgspec.json.decode(body, type=_Refusal).error.message
        except (msgspec.MsgspecError, ValueError, RecursionError):
            message = f"the answer to GET {REQUESTS}ID ({status}) is none of a frontend that explains requests"
        raise FrontendError(visible(f"{self.url}: {message}"[:400]))

    def _get(self, path: str) -> tuple[int, bytes]:
        body, until = bytearray(), time.monotonic() + _SECONDS
        try:
            with self._client.stream("GET", self.url + path) as answer:
                for piece in answer.iter_raw():
                    body += piece
                    if len(body) > _MOST_BYTES or time.monotonic() > until:
                        raise FrontendError(f"{self.url}{path} says more than {_MOST_BYTES >> 20} MB, or too slowly")
                return answer.status_code, bytes(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise FrontendError(f"no answer from {self.url}: {type(error).__name__} {error}"[:200].rstrip()) from None
