"""The console: a page for browsers at `/`, its files, its policy, and the workers that it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from dynamo.frontend.console.paths import SCRIPTS, STYLE, wants_html

BROWSER: Final = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
FILES: Final = (STYLE, *SCRIPTS)
KEY: Final = "sk-of-the-console"
KEPT: Final = r"(session|local)Storage|indexedDB|document\.cookie|location\.(hash|search)|caches\."
POLICY: Final = {
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:",
    "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'",
}  # fmt: skip


def test_browsers_get_the_page_and_programs_json(served: Any) -> None:
    """`/` is negotiated by Accept; caches are told so; the files that the page names are there, and small."""
    with httpx.Client(base_url=served.url) as client:
        page = client.get("/", headers=BROWSER)
        assert page.headers["content-type"].startswith("text/html")
        plain = client.get("/", headers={"accept": "application/json"})
        assert plain.json()["name"] == "Dynamo Pipelines"
        assert page.headers["vary"] == plain.headers["vary"] == "accept"
        named = re.findall(r'(?:src|href)="(console/[^"]+)"', page.text)
        assert sorted(f"/{name}" for name in named) == sorted(FILES)
        size = len(page.content)
        for answer in (page, *(client.get(path) for path in FILES)):
            assert answer.status_code == 200
            assert set(answer.headers["content-security-policy"].split("; ")) == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
        size += sum(len(client.get(path).content) for path in FILES)
        assert size < 40_000
        head = client.head("/", headers=BROWSER)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(page.content))
        assert client.options(FILES[1]).headers["allow"] == "GET, HEAD, OPTIONS"


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html", True), ("TEXT/HTML;q=0.5", True), ("application/json, text/html", True), ("", False),
        ("*/*", False), ("text/*", False), ("text/html;q=0", False), ("text/html; q=0.000", False),
        ("text/html;q=0.01", True), ("text/htmlx", False),
    ],
)  # fmt: skip
def test_who_wants_html(accept: str, html: bool) -> None:
    """Only who names it, and does not refuse it."""
    assert wants_html(accept) is html


def test_workers_have_state_and_load(served: Any) -> None:
    """The one worker that the site has: idle, ready, and nobody knows its KV blocks."""
    answer = httpx.get(f"{served.url}/console/workers").json()
    (worker,) = answer["workers"]
    assert answer["total"] == 1
    assert int(worker.pop("id"), 16) in served.instances()
    assert len(worker.pop("card")) == 16
    assert worker == {
        "model": "m", "role": "generate", "state": "ready", "in_flight": 0, "running": 0, "queue": 0, "kv_usage": None,
        "cache_hits": None, "restarts": 0,
    }  # fmt: skip


def test_the_console_can_be_switched_off(make_site: Any) -> None:
    """By its own option: JSON for everybody, and none of its routes."""
    site = make_site(console=False)
    with httpx.Client(base_url=site.url) as client:
        root = client.get("/", headers=BROWSER)
        assert root.json()["name"] == "Dynamo Pipelines"
        assert "vary" not in root.headers
        for path in (*FILES, "/console/workers"):
            assert client.get(path).status_code == 404, path


def test_with_keys_only_the_page_is_there_without_one(make_site: Any, tmp_path: Path) -> None:
    """The page asks for the key, so it comes without; data, JSON and other methods don't."""
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n")
    site = make_site(api_keys_file=str(file))
    with httpx.Client(base_url=site.url) as client:
        for path in ("/", *FILES):
            for headers in (BROWSER, BROWSER | {"authorization": "Bearer wrong"}):
                answer = client.get(path, headers=headers)
                assert (answer.status_code, KEY in answer.text) == (200, False), path
            assert client.post(path, headers=BROWSER).status_code == 401, path
        for path in ("/", "/console/workers", "/v1/models", "/docs", "/console/other", "//console/console.js"):
            headers = {} if path == "/" else BROWSER
            assert client.get(path, headers=headers).status_code == 401, path
        known = client.get("/console/workers", headers={"authorization": f"Bearer {KEY}"})
        assert known.json() == {"workers": [], "total": 0}


def test_the_script_writes_text_only(served: Any) -> None:
    """Answers of a model are text: no script makes HTML or code of a string, or keeps the key anywhere."""
    scripts = [httpx.get(served.url + path).text for path in SCRIPTS]
    for pattern in (r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|\.style\b", KEPT):
        assert not [script for script in scripts if re.search(pattern, script)], pattern
