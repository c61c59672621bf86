"""Drives the console in Chromium by keyboard, over a pipeline of simulated models: `make test-docs`.

It sends a message, stops a long answer, has a tool called, shows an image, compares two models, follows a worker's
death on the picture of routing, gives an API key, and has axe look at the page. Names and words are hostile.
`--pictures FOLDER` keeps what was seen; the documents show it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from docs.site.check_pages import WIDTH, Browser, browser

SECONDS: Final = 60.0
LOOKS: Final = (("dark", 1280, "dark"), ("light", 1280, "light"), ("phone", WIDTH, "light"))
HOSTILE: Final = "<img src=x onerror=hostile=1>"
MOST_BYTES: Final = 300_000
MOST_PAINT_MS: Final = 1000.0
TRIES: Final = 5
PIPELINES: Final = """
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: demo}
spec:
  namespace: shown
  model: {name: demo, toolCallParser: hermes}
  frontend: {router: {mode: kv}}
  components: [{engine: mocker, replicas: 3}]
---
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: parrot}
spec:
  namespace: shown
  model: {name: "SECOND"}
  frontend: {port: 8001}
  components: [{engine: echo_core}]
"""
KEYED: Final = """
apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: demo}
spec:
  namespace: keyed
  model: {name: demo}
  components: [{engine: mocker}]
"""
KEY: Final = "key-of-a-test"
TOOLS: Final = [{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}]
PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
AXE: Final = """axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify(
  found.violations.filter(v => ['serious', 'critical'].includes(v.impact))
    .map(v => v.id + ': ' + v.nodes.map(n => n.target.join(' ')).slice(0, 5).join(', '))))"""


class Pipelines:
    """Pipelines that `dynamo up` runs; `dynamo ps` says where they are."""

    def __init__(self, program: str, environment: dict[str, str]) -> None:
        self._words, self._environment = [program, "ps", "-o", "json"], environment

    def runs(self) -> list[dict[str, Any]]:
        """Return what is up."""
        told = subprocess.run(self._words, capture_output=True, env=self._environment, timeout=SECONDS, check=False)
        runs: list[dict[str, Any]] = json.loads(told.stdout or b"[]") if told.returncode == 0 else []
        return runs

    def url(self) -> str:
        """Return the address of the first one's frontend, once it serves."""
        return str(_until("it serves", lambda: next((r["url"] for r in self.runs() if r["pipeline"] == "demo"), "")))

    def kill_a_worker(self) -> None:
        """Kill a worker of the first pipeline without a warning."""
        parts = next(run["parts"] for run in self.runs() if run["pipeline"] == "demo")
        os.kill(next(part["pid"] for part in parts if part["kind"] == "worker"), signal.SIGKILL)


@contextlib.contextmanager
def served(program: str, pipelines: str, key: str = "") -> Iterator[Pipelines]:
    """Serve pipelines, with a home of their own; with a key those who have it."""
    with tempfile.TemporaryDirectory() as folder:
        file, keys = Path(folder) / "pipelines.yaml", Path(folder) / "keys.txt"
        file.write_text(pipelines)
        keys.write_text(f"{key}\n")
        environment = {**os.environ, "XDG_STATE_HOME": folder, "HOME": folder}
        environment |= {"DYN_API_KEYS_FILE": str(keys)} if key else {}
        words = [program, "up", str(file), "--http-port", "0"]
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Pipelines(program, environment)
        finally:
            process.terminate()
            process.wait(SECONDS)


def _until(what: str, check: Callable[[], Any]) -> Any:
    end = time.monotonic() + SECONDS
    while not (value := check()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.1)
    return value


class Console:
    """The page, and hands on its keyboard."""

    def __init__(self, tab: Browser) -> None:
        self._tab = tab

    def open(self, url: str) -> None:
        """Open a page."""
        self._tab.open(url)

    def said(self, expression: str, *, awaited: bool = False) -> Any:
        """Return what the page says of an expression."""
        answer = self._tab.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=awaited)
        return answer["result"].get("value")

    def until(self, what: str, expression: str) -> None:
        """Wait until an expression is true; `TimeoutError` says what was waited for."""
        try:
            _until(what, lambda: self.said(expression))
        except TimeoutError:
            raise TimeoutError(f"the console: {what}; the page shows {self.said('document.body.innerText')}") from None

    def write(self, text: str) -> None:
        """Type a text where the focus is."""
        self._tab.call("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key where the focus is."""
        about = {"key": key, "code": "Space" if key == " " else key, "windowsVirtualKeyCode": code}
        self._tab.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **about)
        self._tab.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def tab_to(self, element: str) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(60):
            if self.said("document.activeElement.id") == element:
                return
            self.press("Tab", 9)
        raise TimeoutError(f"the console: Tab doesn't reach {element}")

    def choose(self, element: str, file: Path) -> None:
        """Choose a file for an input."""
        root = self._tab.call("DOM.getDocument")["root"]["nodeId"]
        node = self._tab.call("DOM.querySelector", nodeId=root, selector=f"#{element}")["nodeId"]
        self._tab.call("DOM.setFileInputFiles", files=[str(file.absolute())], nodeId=node)

    def picture(self, path: Path, width: int, scheme: str) -> None:
        """Keep what is seen in a window of this width; it is no wider than that."""
        size = {"width": width, "height": 1100, "deviceScaleFactor": 1, "mobile": width == WIDTH}
        self._tab.call("Emulation.setDeviceMetricsOverride", **size)
        self._tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        wide = self.said("document.scrollingElement.scrollWidth")
        assert wide <= width, f"the console is {wide} pixels wide in a window of {width}"
        seen = self._tab.call("Page.captureScreenshot", captureBeyondViewport=True, format="webp", quality=60)["data"]
        path.write_bytes(base64.b64decode(seen))


def open_quickly(tab: Browser, url: str) -> Console:
    """Open the page until it paints within the bound; a machine that is busy with other work gets some tries."""
    console = Console(tab)
    paints: list[float] = []
    for _ in range(TRIES):
        tab.open(f"{url}/")
        first = "(performance.getEntriesByName('first-contentful-paint')[0] || {startTime: 0}).startTime"
        console.until("it paints", first)
        paints.append(console.said(first))
        if paints[-1] < MOST_PAINT_MS:
            break
    sizes = [event["params"]["encodedDataLength"] for event in tab.events if event["method"] == LOADED]
    print(f"first paint {paints[-1]:.0f} ms, {sum(sizes)} bytes in {len(sizes)} files")
    assert paints[-1] < MOST_PAINT_MS, f"first paint after {paints} ms"
    assert 0 < sum(sizes) < MOST_BYTES, f"the page has {sum(sizes)} bytes"
    console.until("the models are there", "document.getElementById('model-a').options.length == 2")
    console.until("the workers are ready", "document.querySelectorAll('#workers .good').length == 4")
    return console


LOUD: Final = ("Runtime.exceptionThrown", "Log.entryAdded")
LOADED: Final = "Network.loadingFinished"
REQUESTED: Final = "Network.requestWillBeSent"
FORM: Final = "#log-a article:last-child fieldset"
FIGURES: Final = (
    "/TTFT \\d+ ms · \\d+ tokens · [\\d.]+ tokens.s/.test(document.getElementById('figures-%s').textContent)"
)


def chat(console: Console) -> None:
    """Chat and stop by keyboard alone."""
    console.said("document.getElementById('model-a').focus()")
    console.press("d", 68, "d")
    console.until("the model is chosen", "document.getElementById('model-a').value == 'demo'")
    console.tab_to("prompt")
    console.write("Hello <b>there</b> " * 20)
    console.press("Enter", 13)
    console.until("an answer ends with its figures", FIGURES % "a")
    assert console.said("document.querySelector('#log-a b')") is None, "a message became HTML"
    console.said("document.getElementById('max-tokens').value = 100000")
    console.write("A long one")
    console.press("Enter", 13)
    console.until("tokens come", "document.querySelector('#log-a article:last-child .text:not(.thought)').textContent")
    console.press("Escape", 27)
    console.until("Escape stops it", "document.getElementById('figures-a').textContent.endsWith('stopped')")
    assert console.said("document.activeElement.id") == "prompt", "the focus left the message"
    idle = "[...document.querySelectorAll('#workers tr')].every(row => row.cells[3].textContent == '0')"
    console.until("the worker is idle again", idle)
    console.said("document.getElementById('max-tokens').value = 64")


def call_a_tool(console: Console) -> None:
    """Have a tool called: its result goes back by the form, or by the next message where the form is left alone."""
    console.said("document.getElementById('options').open = true")
    console.said("document.getElementById('prompt').focus()")
    console.tab_to("tools")
    console.write(json.dumps(TOOLS))
    for result in ("noon", ""):
        console.said("document.getElementById('prompt').focus()")
        console.write('call get_time {"city": "<b>Paris</b>"}')
        console.press("Enter", 13)
        console.until(
            "the call is shown", f"document.querySelector('{FORM} label').textContent.includes('get_time({{')"
        )
        assert console.said(f"document.querySelector('{FORM} label b')") is None, "arguments became HTML"
        if result:
            console.said(f"document.querySelector('{FORM} textarea').focus()")
            console.write(result)
            console.press("Tab", 9)
            console.press("Enter", 13, "\r")
            console.until("it goes on", f"document.querySelector('{FORM}') === null && {FIGURES % 'a'}")
    console.said("document.getElementById('prompt').focus()")
    console.write("Never mind")
    console.press("Enter", 13)
    console.until("it goes on without a result", f"document.querySelector('{FORM}') === null && {FIGURES % 'a'}")
    assert not console.said("document.querySelector('#log-a .bad')"), "a request was refused"
    console.said("document.getElementById('tools').value = ''")
    console.said("document.getElementById('options').open = false")


def show_an_image(console: Console, folder: Path) -> None:
    """Send an image, chosen as a person does in a window that no keyboard reaches; it is shown with the message."""
    file = folder / "pixel.png"
    file.write_bytes(PIXEL)
    console.choose("images", file)
    console.said("document.getElementById('prompt').focus()")
    console.write("What is it?")
    console.until("it is read", "document.getElementById('raw').textContent.includes('image_url')")
    console.press("Enter", 13)
    console.until("it is shown", "document.querySelector('#log-a article img').naturalWidth == 1")
    console.until("it is answered", FIGURES % "a")
    assert not console.said("document.querySelector('#log-a .bad')"), "a request was refused"
    file.unlink()
    console.tab_to("clear")
    console.press("Enter", 13, "\r")


def give_a_key(tab: Browser, url: str) -> None:
    """Type a wrong key and the right one; the page keeps it in no address and no storage."""
    console = Console(tab)
    tab.open(f"{url}/")
    console.until("it asks for a key, and the focus is there", "document.activeElement.id == 'key'")
    assert console.said("document.getElementById('model-a').options.length") == 0, "models without a key"
    console.write("another-key")
    console.press("Enter", 13, "\r")
    console.until("it says that it is wrong", "/doesn't know this key/.test(document.body.innerText)")
    console.said("document.getElementById('key').focus()")
    console.write(KEY)
    console.press("Enter", 13, "\r")
    console.until("the models are there", "document.getElementById('model-a').options.length == 1")
    assert console.said("document.getElementById('key-form').hidden"), "the form stays"
    console.said("document.getElementById('prompt').focus()")
    console.write("Hello")
    console.press("Enter", 13)
    console.until("it is answered", FIGURES % "a")
    places = "location.href, {...localStorage}, {...sessionStorage}, document.cookie, document.body.innerHTML"
    asked = [event["params"]["request"]["url"] for event in tab.events if event["method"] == REQUESTED]
    assert KEY not in console.said(f"JSON.stringify([{places}])") + "".join(asked), "the key is kept, or in an address"


def compare(console: Console, second: str) -> None:
    """Ask two models at once; the name of one is hostile, and it repeats what it is told."""
    console.tab_to("compare")
    console.press(" ", 32, " ")
    console.until("there are two panes", "!document.getElementById('pane-b').hidden")
    other = f"document.getElementById('model-b').value == {json.dumps(second)}"
    console.until("the second is another model", other)
    console.said("document.getElementById('prompt').focus()")
    console.write("<script>hostile = 1</script><i>again</i>")
    console.press("Enter", 13)
    console.until("the first has answered", FIGURES % "a")
    console.until("the second has answered", FIGURES % "b")
    echoed = "document.querySelector('#log-b article:last-child .text:not(.thought)').textContent"
    console.until("it repeats what it was told", f"{echoed}.includes('<i>again</i>')")
    made = "document.querySelectorAll('main i, main script, main img').length"
    assert console.said(made) == 0, "words became elements"
    assert console.said("typeof hostile") == "undefined", "words were run"


def lose_a_worker(console: Console, pipelines: Pipelines) -> None:
    """Follow a worker's death on the picture, in words, and in the table: another one takes its place."""
    console.until("choices are shown", "/cost/.test(document.getElementById('routes').textContent)")
    pipelines.kill_a_worker()
    console.until("the picture shows a worker as gone", "document.querySelector('#picture .worker.gone') !== null")
    console.until("it is said", "/is gone|is away/.test(document.getElementById('news').textContent)")
    restarted = "[...document.querySelectorAll('#workers tr')].some(row => row.cells[8].textContent == '1')"
    console.until("its place is taken", restarted)


def show(console: Console, axe: str, folder: Path, title: str) -> None:
    """Keep what is seen dark, light and on a phone; axe finds nothing serious on any of them."""
    console.said(f"{axe};undefined")
    for name, width, scheme in LOOKS:
        console.picture(folder / f"{title}-{name}.webp", width, scheme)
        violations = json.loads(console.said(AXE, awaited=True))
        assert not violations, f"axe, {name}: {violations}"


def problems(events: Sequence[dict[str, Any]], url: str) -> list[str]:
    """Return what went wrong in the page, in sentences."""
    loud = [str(event["params"]) for event in events if event["method"] in LOUD]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == REQUESTED]
    hosts = {"", urlsplit(url).netloc}
    return loud + [f"it asks a foreign host: {other}" for other in asked if urlsplit(other).netloc not in hosts]


def main() -> None:
    """Look at the console; exit 1 where its page has an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="dynamo")
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--second", default=HOSTILE, help="name of the second model; a milder one for the documents")
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js")
    args = parser.parse_args()
    args.pictures.mkdir(parents=True, exist_ok=True)
    with served(args.program, PIPELINES.replace("SECOND", args.second)) as pipelines, browser() as tab:
        url = pipelines.url()
        console = open_quickly(tab, url)
        chat(console)
        call_a_tool(console)
        show_an_image(console, args.pictures)
        compare(console, args.second)
        show(console, args.axe.read_text(), args.pictures, "console")
        lose_a_worker(console, pipelines)
        wrong = problems(tab.events, url)
    with served(args.program, KEYED, KEY) as pipelines, browser() as tab:
        give_a_key(tab, pipelines.url())
    if wrong:
        sys.exit(f"the console's page has errors: {wrong}")


if __name__ == "__main__":
    main()
