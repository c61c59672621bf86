"""What tests of several commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.frontend.conftest import QUICK, Echo, Site


@pytest.fixture
def served() -> Iterator[Site]:
    """A real frontend with one worker, over HTTP."""
    site = Site(QUICK)
    try:
        site.worker(Echo())
        yield site
    finally:
        site.close()
