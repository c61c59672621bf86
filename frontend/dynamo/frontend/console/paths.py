"""Where the console's files are, and which requests ask for them. Pure; `app.py` lets those pass without a key."""

from __future__ import annotations

from typing import Any, Final

from dynamo.frontend.http.guard import WORKERS
from dynamo.frontend.http.settings import AccessSettings

STYLE: Final = "/console/console.css"
SCRIPTS: Final = tuple(f"/console/{name}.js" for name in ("console", "chat", "live", "page", "stream"))
EVENTS: Final = "/console/events"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""What a page of ours may load: nothing of other hosts, and no script in its text."""
_HTML: Final = "text/html"
_LONGEST_ACCEPT: Final = 4096
Scope = Any


def is_served(access: AccessSettings) -> bool:
    """Tell whether the port of clients has the console."""
    return access.console and access.public_system_routes


def paths_of(access: AccessSettings) -> tuple[str, ...]:
    """Return the paths beside `/` that the console has; none where it is off."""
    return (STYLE, *SCRIPTS, WORKERS, EVENTS) if is_served(access) else ()


def wants_html(accept: str) -> bool:
    """Tell whether an Accept names HTML, as browsers do and programs don't; `q=0` refuses it."""
    for kind in accept[:_LONGEST_ACCEPT].lower().split(","):
        name, *parameters = (part.strip() for part in kind.split(";"))
        if name == _HTML:
            return not any(part.startswith("q=0") and not part[3:].strip(".0") for part in parameters)
    return False


def is_page(scope: Scope) -> bool:
    """Tell whether a request asks for the page or its files: they hold no data."""
    if scope["method"] not in ("GET", "HEAD"):
        return False
    path = scope["path"]
    if path == STYLE or path in SCRIPTS:
        return True
    return path == "/" and wants_html(", ".join(v.decode("latin-1") for n, v in scope["headers"] if n == b"accept"))
