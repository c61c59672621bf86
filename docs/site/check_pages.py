"""Opens every page of the built site in Chromium: `make test-docs`.

A page fails with an error in its console, a request that fails or goes to a foreign host, a picture or diagram that
isn't drawn, or a body that is wider than a telephone. `--pictures FOLDER` keeps what was seen.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

WIDTH: Final = 380
PAGE_SECONDS: Final = 20.0
BROWSERS: Final = ("chromium", "chromium-headless-shell", "google-chrome", "chromium-browser")
QUIET: Final = "new Promise(done => setTimeout(done, 20))"
"""What the page before still asks for has failed by then."""
SEEN: Final = """(async () => {
  const drawn = () => [...document.querySelectorAll('.mermaid')].every(e => e.tagName == 'DIV');
  for (let i = 0; i < 100 && !drawn(); i++) await new Promise(done => setTimeout(done, 50));
  const pictures = [...document.images].filter(i => i.loading != 'lazy' || i.complete);
  return JSON.stringify({
    width: document.scrollingElement.scrollWidth, drawn: drawn(),
    broken: pictures.filter(i => !i.naturalWidth).map(i => i.src),
    words: document.querySelector('article, body').innerText.length,
  });
})()"""
BROKEN: Final = """<html><body><p style="width: 900px">wide</p><img src="missing.png">
<img src="http://foreign.invalid/picture.png"><script>console.error('loud'); missing()</script></body></html>"""
"""A page with every mistake that the check looks for."""


class Browser:
    """One tab of one Chromium, over its debugging protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; what happens meanwhile goes to `events`."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = self._read(PAGE_SECONDS)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, url: str) -> dict[str, Any]:
        """Load a page and return what `SEEN` makes of it."""
        self.call("Page.navigate", url="about:blank")
        self.call("Runtime.evaluate", expression=QUIET, awaitPromise=True)
        self.events.clear()
        self.call("Page.navigate", url=url)
        end = time.monotonic() + PAGE_SECONDS
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read(end - time.monotonic())
        result = self.call("Runtime.evaluate", expression=SEEN, awaitPromise=True, returnByValue=True)
        seen: dict[str, Any] = json.loads(result["result"]["value"])
        return seen

    def _read(self, seconds: float) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=max(seconds, 0.01)))
        if "method" in message:
            self.events.append(message)
        return message


def problems(browser: Browser, url: str) -> list[str]:
    """Return what is wrong with a page, in sentences."""
    seen = browser.open(url)
    results = [f"is {seen['width']} pixels wide in a window of {WIDTH}"] if seen["width"] > WIDTH else []
    results += [f"has a broken picture: {source}" for source in seen["broken"]]
    results += [] if seen["drawn"] else ["has a diagram that isn't drawn"]
    results += [] if seen["words"] else ["is empty"]
    host = urlsplit(url).netloc
    for event in browser.events:
        results += _problem(event["method"], event["params"], host)
    return results


def _problem(method: str, params: dict[str, Any], host: str) -> Iterator[str]:
    if method == "Network.requestWillBeSent":
        asked = urlsplit(params["request"]["url"])
        if asked.scheme in ("http", "https") and asked.netloc != host:
            yield f"asks a foreign host: {params['request']['url']}"
    elif method == "Network.responseReceived" and params["response"]["status"] >= 400:
        yield f"gets {params['response']['status']} for {params['response']['url']}"
    elif method == "Runtime.exceptionThrown":
        yield f"throws: {params['exceptionDetails'].get('text')}"
    elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
        yield f"logs an error: {[arg.get('value') for arg in params['args']]}"
    elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
        yield f"logs: {params['entry']['text']}"


@contextlib.contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the site over HTTP on a free port of loopback."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/favicon.ico":
                self.send_response(204)
                self.end_headers()
            else:
                super().do_GET()

        def log_request(self, *args: Any) -> None: ...

        def log_error(self, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Open a tab as narrow as a telephone; the browser and its folder are gone afterwards."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("there is no Chromium on PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
            "--disable-background-networking", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            with connect(_tab(Path(folder)), max_size=None) as socket:
                tab = Browser(socket)
                for domain in ("Page", "Runtime", "Network", "Log"):
                    tab.call(f"{domain}.enable")
                tab.call(
                    "Emulation.setDeviceMetricsOverride", width=WIDTH, height=800, deviceScaleFactor=1, mobile=True
                )
                yield tab
        finally:
            process.terminate()
            process.wait(10)


def _tab(folder: Path) -> str:
    """Return the address of the only tab's debugger."""
    port = folder / "DevToolsActivePort"
    end = time.monotonic() + PAGE_SECONDS
    while not port.exists() or not port.read_text().strip():
        if time.monotonic() > end:
            raise TimeoutError("Chromium didn't start")
        time.sleep(0.05)
    with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json", timeout=PAGE_SECONDS) as answer:
        tabs = json.load(answer)
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))


def look(site: Path, pictures: Path | None) -> int:
    """Open every page; return how many have problems, after printing them."""
    pages = sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html") if page.name != "404.html")
    begun, bad = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, browser() as tab:
        (Path(folder) / "broken.html").write_text(BROKEN)
        with served(Path(folder)) as url:
            found = len({text.split(":")[0] for text in problems(tab, f"{url}/broken.html")})
            if found < 5:
                raise SystemExit(f"the check sees {found} kinds of mistakes on a page that has all")
        with served(site) as url:
            for page in pages:
                wrong = problems(tab, f"{url}/{page}")
                bad += bool(wrong)
                for text in wrong:
                    print(f"{page} {text}")
                if pictures is not None:
                    shot = tab.call("Page.captureScreenshot", format="png")["data"]
                    (pictures / (page.replace("/", "_") + ".png")).write_bytes(base64.b64decode(shot))
    print(f"{len(pages)} pages, {bad} with problems, {time.monotonic() - begun:.0f} s")
    return bad


def main() -> None:
    """Look at the site that `make docs` has built."""
    parser = argparse.ArgumentParser(description="Open every page of the built site in Chromium.")
    parser.add_argument("site", type=Path, help="folder that `make docs` wrote")
    parser.add_argument("--pictures", type=Path, help="keep a picture of each page in this folder")
    options = parser.parse_args()
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    sys.exit(1 if look(options.site, options.pictures) else 0)


if __name__ == "__main__":
    main()
