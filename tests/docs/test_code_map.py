"""The code map names what is there: recipes within their bars, the tree's folders, the files that were walked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from docs.generate.walked.__main__ import written

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = (ROOT / "CONTRIBUTING.md").read_text()
MAP: Final = (ROOT / "docs/design/skeleton.md").read_text()
BARS: Final = {
    "an engine": 3, "a sampling parameter": 3, "a frontend option": 2,
    "an option that frontend, worker and CR share": 6, "a router mode": 3, "an OpenAI route": 5, "a CRD field": 2,
    "a metric": 2,
}  # fmt: skip
"""Modules that a change may touch; of an engine two and its own."""
SOURCES: Final = ("sdk", "frontend", "worker", "operator", "cli")
FILE: Final = re.compile(r"`((?:sdk|frontend|worker|operator|cli|tests|docs|crds|charts|gitops|examples)/[\w./*-]+)`")
NEW: Final = "NAME"
"""Stands in the path of a file that a recipe makes."""


def recipe(title: str) -> str:
    """The text of one recipe."""
    _, recipe, rest = GUIDE.partition(f"### Add {title}\n")
    assert recipe, f"CONTRIBUTING.md has no recipe for {title}"
    return re.split(r"^#{2,3} ", rest, flags=re.MULTILINE)[0]


def modules(title: str) -> list[str]:
    """The source files that the recipe's numbered lines begin with."""
    return re.findall(rf"^\d+\. `((?:{'|'.join(SOURCES)})/[\w./]+\.py)`", recipe(title), re.MULTILINE)


@pytest.mark.parametrize("title", BARS)
def test_a_recipe_names_files_that_exist(title: str) -> None:
    """Of a file that it makes, the folder is there."""
    files = FILE.findall(recipe(title))
    assert files
    assert [f for f in files if NEW not in f and not list(ROOT.glob(f.rstrip("/")))] == []
    assert [f for f in files if NEW in f and not (ROOT / f.partition(NEW)[0]).parent.is_dir()] == []


@pytest.mark.parametrize(("title", "bar"), BARS.items())
def test_a_recipe_takes_no_more_modules_than_its_bar(title: str, bar: int) -> None:
    """Every module of a source folder that it names stands in a numbered line."""
    numbered = modules(title)
    assert 0 < len(set(numbered)) == len(numbered) <= bar
    named = {f for f in FILE.findall(recipe(title)) if f.endswith(".py") and f.startswith(SOURCES)}
    assert named <= {*numbered}


def test_every_recipe_has_a_bar() -> None:
    """A ninth recipe gets one, too."""
    assert re.findall(r"^### Add (.+)$", GUIDE, re.MULTILINE) == list(BARS)


def test_the_tree_has_every_package_folder() -> None:
    """A new folder gets its line, a folder that goes loses it."""
    table = MAP.partition("## The tree")[2].partition("\n## ")[0]
    named = re.findall(r"^\| \*{0,2}`([\w/]+)`\*{0,2} \|", table, re.MULTILINE)
    packages = {str(path.parent.relative_to(ROOT)) for top in SOURCES for path in (ROOT / top).rglob("__init__.py")}
    assert sorted(named) == sorted(packages)


def walked(page: str, name: str) -> list[str]:
    """The files of one list; as many as it says, each once."""
    text = page.partition(f"<!-- walked: {name} -->")[2].partition("<!-- end -->")[0].replace("\n  ", " ")
    said = re.search(r"^(\d+) files:$", text, re.MULTILINE)
    folders = re.findall(r"^- `([\w/]+/)`: (.+)$", text, re.MULTILINE)
    files = [f"{folder}{file}" for folder, names in folders for file in re.findall(r"`([\w.]+)`", names)]
    assert said is not None
    assert len(files) == len(set(files)) == int(said[1]) > 0
    return files


@pytest.mark.parametrize("name", ["request", "mode kv", "token", "spec change"])
def test_the_walked_files_exist(name: str) -> None:
    """A file that moves takes its name in the list along, or the walk is measured again."""
    assert [file for file in walked(MAP, name) if not (ROOT / file).is_file()] == []


def test_a_walk_is_written_as_it_is_read() -> None:
    """Between its marks, in order, and nothing beside them changes."""
    files = [f"sdk/dynamo/llm/kv/part_{number}.py" for number in range(20)] + ["sdk/dynamo/llm/protocols.py"]
    page = written("before <!-- walked: one --> old <!-- end --> after", {"one": files})
    assert walked(page, "one") == files
    assert (page[:7], page[-6:], " old " in page) == ("before ", " after", False)
    assert max(map(len, page.splitlines())) <= 130
