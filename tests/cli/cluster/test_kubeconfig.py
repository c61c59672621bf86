"""Which file, which context, which namespace."""

from __future__ import annotations

from pathlib import Path

from dynamo.cli.cluster.kubeconfig import files, merge, read


def entry(name: str, **more: str) -> dict[str, object]:
    return {"name": name, "context": {"cluster": "c", "user": "u", **more}}


def test_the_flag_wins_then_the_variable_then_the_home() -> None:
    """As kubectl looks."""
    assert files("mine", {"KUBECONFIG": "a:b"}) == [Path("mine")]
    assert files(None, {"KUBECONFIG": "a::b"}) == [Path("a"), Path("b")]
    assert files(None, {}) == [Path("~/.kube/config").expanduser()]


def test_the_first_file_that_says_something_wins() -> None:
    """Contexts of all files, the first one of a name, the first choice of one in use."""
    first = {"contexts": [entry("a", namespace="one")]}
    second = {"current-context": "b", "contexts": [entry("a", namespace="two"), entry("b")]}
    result = merge([first, None, second])
    assert [(c.name, c.namespace) for c in result.contexts] == [("a", "one"), ("b", "default")]
    assert result.context(None) == result.context("b")
    assert result.context("c") is None


def test_nonsense_is_passed_over() -> None:
    """What is no context isn't one; nothing in use is nobody's context."""
    result = merge([[], {"contexts": [None, {"name": "x"}, {"name": "y", "context": []}]}])
    assert result.contexts == ()
    assert result.context(None) is None


def test_files_that_are_not_there_are_no_mistake(tmp_path: Path) -> None:
    """KUBECONFIG may name some that come later."""
    (tmp_path / "there").write_text("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n")
    assert read([tmp_path / "missing", tmp_path / "there"]).current == "a"
