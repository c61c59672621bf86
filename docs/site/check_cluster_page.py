"""Drives the page of a cluster in Chromium by keyboard: `make test-docs`.

It filters pipelines, opens one, loses another, and loses the cluster; names are hostile, and axe looks at the page.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from docs.site.check_console import SECONDS, Console, problems, show
from docs.site.check_pages import browser

NAMES: Final = "[...document.querySelectorAll('#pipelines button')].map(button => button.textContent).join()"


class ServedPage:
    """The page of a made-up cluster, and what happens to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.address, _, self.key = process.stdout.readline().strip().partition("#key=")

    def befall(self, what: str) -> None:
        """Let something happen to the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()


@contextlib.contextmanager
def served(python: str) -> Iterator[ServedPage]:
    """Serve it with the project's own Python."""
    words = [python, "-m", "docs.site.serve_cluster_page"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield ServedPage(process)
    finally:
        process.terminate()
        process.wait(SECONDS)


def give_the_key(console: Console, page: ServedPage) -> None:
    """Without its key the page asks for it; with one in the address it doesn't, and the address forgets it."""
    console.open(page.address)
    console.until("it asks for the key", "document.activeElement.id == 'key'")
    assert console.said(NAMES) == "", "pipelines without a key"
    console.open(f"{page.address}?again#key={page.key}")
    console.until("the pipelines are there", f"{NAMES} == 'search/llama,search/qwen,support/phi'")
    assert page.key not in console.said("location.href + document.body.innerHTML"), "the address keeps the key"


def find_one(console: Console) -> None:
    """Filter by a word and by state, and open the one that is left: all by keyboard."""
    console.tab_to("filter")
    console.write("support")
    console.until("the filter holds", f"{NAMES} == 'support/phi'")
    console.said("document.getElementById('filter').value = ''")
    console.tab_to("waiting")
    console.press(" ", 32, " ")
    console.until("what is ready is hidden", f"{NAMES} == 'search/qwen'")
    for _ in range(10):
        if console.said("document.activeElement.textContent") == "search/qwen":
            break
        console.press("Tab", 9)
    console.press("Enter", 13, "\r")
    console.until("its details are there", "!document.getElementById('detail').hidden")
    assert console.said("document.activeElement.id") == "detail-title", "the focus doesn't follow"
    words = console.said("document.getElementById('detail').innerText")
    for part in ("Unschedulable", "by-queue: 2 → 4, 1 to 6 workers", "reads queue", "dynamo get-url qwen -n search"):
        assert part in words, f"{part} isn't shown: {words}"
    console.tab_to("waiting")
    console.press(" ", 32, " ")
    made = "document.querySelectorAll('main img, main script').length"
    assert console.said(made) == 0, "words became elements"
    assert console.said("typeof hostile") == "undefined", "words were run"
    assert "4 nvidia.com/gpu" in console.said("document.getElementById('namespaces').innerText")


def lose(console: Console, page: ServedPage) -> None:
    """Take a pipeline away, and then the cluster: the page says so, and keeps what it had."""
    page.befall("lose")
    console.until("it is gone", f"{NAMES} == 'search/qwen,support/phi'")
    page.befall("fail")
    console.until("the reason is shown", "/connection refused/.test(document.getElementById('problem').innerText)")
    assert console.said(NAMES) == "search/qwen,support/phi", "what was known is gone"


def main() -> None:
    """Look at the page; exit 1 where it has an error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="with the project installed")
    parser.add_argument("--pictures", type=Path, required=True)
    parser.add_argument("--axe", type=Path, required=True, help="axe.min.js")
    args = parser.parse_args()
    args.pictures.mkdir(parents=True, exist_ok=True)
    with served(args.python) as page, browser() as tab:
        console = Console(tab)
        give_the_key(console, page)
        find_one(console)
        show(console, args.axe.read_text(), args.pictures, "cluster")
        lose(console, page)
        wrong = [text for text in problems(tab.events, page.address) if "401" not in text]
    if wrong:
        sys.exit(f"the page of a cluster has errors: {wrong}")


if __name__ == "__main__":
    main()
