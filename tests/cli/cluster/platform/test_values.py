"""Values of the command line, as helm's own flags would give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynamo.cli.cluster.errors import ClusterError
from dynamo.cli.cluster.platform.values import merge, read_files, set_all


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a=b", {"a": "b"}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
        ("a=1,b=true,c=false,d=null", {"a": 1, "b": True, "c": False, "d": None}),
        ("a={x,y}", {"a": ["x", "y"]}),
        ("a={}", {"a": [""]}),
        ("a={1,true}", {"a": [1, True]}),
        ("a[1].b=c", {"a": [None, {"b": "c"}]}),
        ("a[0][1]=c", {"a": [[None, "c"]]}),
        ("a=b=c", {"a": "b=c"}),
        ("a=", {"a": ""}),
        (r"a=b\,c", {"a": "b,c"}),
        (r"a\.b/c=d", {"a.b/c": "d"}),
        ("a=007", {"a": "007"}),
        ("a=1.5", {"a": "1.5"}),
        ("a=-3", {"a": -3}),
        ("a=True,b=+5,c=-0,d=0", {"a": True, "b": 5, "c": 0, "d": 0}),
        ("a=99999999999999999999", {"a": "99999999999999999999"}),
    ],
)
def test_assignments(text: str, fields: dict[str, Any]) -> None:
    """Helm's little language; e2e compares with helm itself."""
    assert set_all({}, [(text, False)]) == fields


def test_text_stays_text() -> None:
    """--set-string."""
    assert set_all({}, [("a=1,b=true,c={2}", True)]) == {"a": "1", "b": "true", "c": ["2"]}


def test_later_ones_win_and_the_rest_stays() -> None:
    """Nothing of what was handed in is changed."""
    base = {"a": {"b": 1, "c": [1, 2]}, "d": "text"}
    values = set_all(base, [("a.b=2", False), ("a.c[0]=9", False), ("d.e=f", False)])
    assert values == {"a": {"b": 2, "c": [9, 2]}, "d": {"e": "f"}}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": "text"}


@pytest.mark.parametrize("text", ["a", "=b", "a..b=c", "a[x]=b", "a[5000]=b", "a.b=1,a[0]=2", "a[0]=1,a.b=2"])
def test_what_is_no_assignment_is_named(text: str) -> None:
    """With the whole flag."""
    with pytest.raises(ClusterError, match="--set "):
        set_all({}, [(text, False)])


def test_maps_are_merged_and_lists_replaced() -> None:
    """Null stays: helm takes it as `without the default`."""
    assert merge({"a": {"b": 1, "c": 2}, "l": [1]}, {"a": {"b": None}, "l": [2]}) == {
        "a": {"b": None, "c": 2}, "l": [2],
    }  # fmt: skip


def test_files_come_one_over_the_other(tmp_path: Path) -> None:
    """An empty one is no mistake."""
    first, second, empty = tmp_path / "one", tmp_path / "two", tmp_path / "empty"
    first.write_text("a: {b: 1, c: 2}\n")
    second.write_text("a: {b: 3}\n")
    empty.write_text("")
    assert read_files([first, empty, second]) == {"a": {"b": 3, "c": 2}}


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", "text\n"])
def test_files_without_values_are_named(tmp_path: Path, text: str) -> None:
    """As one sentence."""
    file = tmp_path / "values.yaml"
    file.write_text(text)
    with pytest.raises(ClusterError, match=r"values\.yaml"):
        read_files([file])
    with pytest.raises(ClusterError, match="missing"):
        read_files([tmp_path / "missing"])
