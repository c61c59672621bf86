"""Target `openapi`: schemathesis asks what /openapi.json says, and what it doesn't; 0 deviations are allowed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import httpx
from tests.fuzz.findings import Finding, Kept
from tests.fuzz.site import MODEL, TOOLS, VECTORS, Site

NAME: Final = "openapi"
_FAILURE: Final = re.compile(r"^- (.+)$", re.MULTILINE)
_OPERATION: Final = re.compile(r"^_+ (.+?) _+$", re.MULTILINE)
_CASES: Final = re.compile(r"(\d+) generated")
_OWN_VALUES: Final = "".join(
    f"[phases.{phase}.extra-data-sources]\nresponses = false\n" for phase in ("examples", "coverage", "fuzzing")
)
"""Names of models are made up: of one that is served, a request may be refused for what no schema can say, such as
a token id beyond its vocabulary."""
_UNASKED: Final = {"best_of": {"type": "null"}, "functions": {"type": "null"}, "min_tokens": {"enum": [0, 1, None]}}
"""Fields that are valid only beside others, as no schema says: what schemathesis sends of them."""
_IMAGES: Final = ("image_url", "input_image", "image")
"""Parts that aren't sent: their URLs must hold a picture."""
_REJECTED: Final = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, "5xx"]
"""schemathesis' own list and 413: what breaks the schema is sometimes larger than any body may be."""


def run(seed: int, seconds: float, kept: Kept, flags: tuple[str, ...] = ()) -> int:
    """Ask for so long; return how many requests were made."""
    with tempfile.TemporaryDirectory(prefix="fuzz-openapi-") as folder:
        site = Site(Path(folder), [MODEL, TOOLS, VECTORS])
        try:
            site.ready()
            said = _asked(site, seed, seconds, Path(folder), flags)
            if "Traceback" in site.frontend.process.text():
                kept.add(Finding(NAME, "the frontend's log", ["a traceback"], f"--only {NAME} --seed {seed}"))
        finally:
            site.close()
    for operation, failure, text in deviations(said):
        replay = f"--only {NAME} --seed {seed}"
        kept.add(Finding(NAME, operation, [failure], replay, text.encode(errors="replace")))
    match = _CASES.search(said)
    return int(match[1]) if match else 0


def _asked(site: Site, seed: int, seconds: float, folder: Path, flags: tuple[str, ...]) -> str:
    rejected = f"[checks.negative_data_rejection]\nexpected-statuses = {json.dumps(_REJECTED)}\n"
    described = without_images(httpx.get(f"{site.url}/openapi.json").json())
    for schema in described["components"]["schemas"].values():
        fields = schema.get("properties", {})
        fields |= {name: _UNASKED[name] for name in fields.keys() & _UNASKED.keys()}
    (folder / "openapi.json").write_text(json.dumps(described))
    (folder / "schemathesis.toml").write_text(rejected + _OWN_VALUES)
    argv = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        "openapi.json",
        "--url",
        site.url,
        "--checks",
        "all",
        "--seed",
        str(seed),
    ]
    argv += ["--max-time", str(max(5, int(seconds))), "--no-color", "--continue-on-failure", "--request-timeout", "30"]
    argv += ["--no-shrink", "--generation-database", "none", "-H", "x-request-timeout-ms: 2000", *flags]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds + 300, cwd=folder, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"schemathesis ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def without_images(part: Any) -> Any:
    """Return a description without the alternatives that are images."""
    if isinstance(part, dict):
        return {key: without_images(value) for key, value in part.items()}
    if isinstance(part, list):
        return [without_images(value) for value in part if not _is_image(value)]
    return part


def _is_image(schema: Any) -> bool:
    kind = schema.get("properties", {}).get("type", {}) if isinstance(schema, dict) else {}
    return bool({*kind.get("enum", ()), kind.get("const")} & {*_IMAGES})


def deviations(said: str) -> list[tuple[str, str, str]]:
    """Return operation, sort and text of each failure in its report."""
    if "FAILURES" not in said:
        return []
    report = said.split("FAILURES", 1)[1].split("SUMMARY")[0]
    heads = [*_OPERATION.finditer(report)]
    results = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        text = report[head.end() : following.start() if following else None]
        results += [(head[1], failure, text[:4000]) for failure in dict.fromkeys(_FAILURE.findall(text))]
    return results
