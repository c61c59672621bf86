"""Asks the model hub whether it answers, takes the token, and what time it has. One request, with a deadline."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from dynamo.cli.diagnosis.machine import HubFact

SECONDS: Final = 5.0
_ON: Final = ("1", "true", "yes", "on")


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the token is for the hub, and for nobody it points to."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(environment: Mapping[str, str], token: str | None, now: float | None = None) -> HubFact:
    """Ask the hub who the token belongs to, or without one whether it is there."""
    url = environment.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    shown = _shown(url)
    if environment.get("HF_HUB_OFFLINE", "").lower() in _ON:
        return HubFact(shown, offline=True, token=bool(token))
    if not url.lower().startswith(("http://", "https://")):
        return HubFact(url.rpartition("@")[2], error="HF_ENDPOINT lacks https://", token=bool(token), no_scheme=True)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(f"{url}/api/whoami-v2", headers=headers)
        with urllib.request.build_opener(_Here).open(request, timeout=SECONDS) as answer:
            status, headers_back = answer.status, answer.headers
    except urllib.error.HTTPError as error:
        status, headers_back = error.code, error.headers
        error.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        return HubFact(shown, error=_why(error), proxy=_proxy(url, environment), token=bool(token))
    skew = _skew(headers_back.get("Date", ""), time.time() if now is None else now)
    if status >= http.client.INTERNAL_SERVER_ERROR:
        return HubFact(shown, error=f"it answers {status}", token=bool(token), skew_seconds=skew)
    if why := _no_hub(status, headers_back.get_content_type()):
        return HubFact(shown, error=why, token=bool(token), in_its_place=True)
    refused = bool(token) and status == http.client.UNAUTHORIZED
    return HubFact(shown, token=bool(token), token_refused=refused, skew_seconds=skew)


def _no_hub(status: int, kind: str) -> str:
    """Return how an answer shows that something else is there, as a network's sign-in page; empty for a hub's."""
    if http.client.MULTIPLE_CHOICES <= status < http.client.BAD_REQUEST:
        return f"it sends elsewhere ({status}), as a sign-in page does"
    return "it answers with a page, as a sign-in page does" if status == http.client.OK and kind == "text/html" else ""


def _proxy(url: str, environment: Mapping[str, str]) -> str:
    """Return the variable that sends a question to this URL through a proxy; empty where none does."""
    parts = urlsplit(url)
    if not parts.hostname or urllib.request.proxy_bypass(parts.hostname):
        return ""
    names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper())
    return next((name for name in names if environment.get(name)), "")


def saved_token() -> str | None:
    """Return the token as the hub's library finds it."""
    try:
        from huggingface_hub import get_token
    except ImportError:
        return None
    return get_token()


def _skew(date: str, now: float) -> float | None:
    try:
        return now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _why(error: Exception) -> str:
    """Return the cause in words: an error of `http.client` may quote a header, and so the token."""
    if isinstance(error, TimeoutError):
        return f"no answer within {SECONDS:g} s"
    reason = getattr(error, "reason", None)
    if isinstance(error, urllib.error.URLError) and isinstance(reason, OSError):
        return reason.strerror or type(reason).__name__
    return (
        "the address or the token has characters that can't be sent"
        if isinstance(error, ValueError)
        else (getattr(error, "strerror", None) or type(error).__name__)
    )


def _shown(url: str) -> str:
    """Return an address without the password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
