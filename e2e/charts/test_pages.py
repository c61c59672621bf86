"""The pages' helm lines, asked of helm itself."""

from __future__ import annotations

import pytest
from e2e.charts.helm import Helm
from tests.docs.pages import READ, steps
from tests.docs.session import ROOT
from tests.docs.style import title
from tests.docs.test_pages import PAGES
from tests.docs.understood import commands

LINES = [
    words
    for page in PAGES
    for step in steps(page, title(page))
    if step.kind == READ
    for words in commands(step.text)
    if words[:2] == ["helm", "install"]
]


@pytest.mark.parametrize("words", LINES, ids=" ".join)
def test_it_renders(words: list[str], helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    """`helm template` with the same words: charts, flags and values are known, and something comes out."""
    monkeypatch.chdir(ROOT)
    rendered = helm.run("template", *words[2:], "--kube-version", "1.34.0")
    assert "kind: " in rendered


def test_there_are_some() -> None:
    """The platform is installed so; a pipeline comes from its own file."""
    assert {words[3] for words in LINES} == {"charts/dynamo-platform"}
