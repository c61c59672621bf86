"""Pages that load a real model, typed from top to bottom; `make test` has the first and all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.session import Session
from tests.docs.style import title
from tests.docs.test_pages import REAL, check, opened  # noqa: F401 # a fixture


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", REAL, ids=title)
def test_a_page_does_what_it_says(page: Path, opened: Session) -> None:  # noqa: F811
    """Every step, in order, on real programs."""
    check(page, opened)
