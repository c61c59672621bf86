"""The endpoints that docs/reference/compatibility/index.md calls served are, and the others are not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from docs.generate.compatibility.routes import ROUTES, SERVED


@pytest.fixture
def served(site: Any, engines: Any) -> Any:
    """A frontend with one model, `m`."""
    site.worker(engines())
    return site


@pytest.mark.parametrize(("method", "path", "state"), [(row[0], row[1], row[3]) for row in ROUTES])
def test_a_route_is_what_the_page_says(served: Any, method: str, path: str, state: str) -> None:
    """Whatever is served knows the path and the method; what is not there says so."""
    answer = httpx.request(method, served.url + path.replace("{id}", "m"), json={} if method == "POST" else None)
    missing = answer.status_code in (404, 405)
    assert missing is (state != SERVED), answer.text
