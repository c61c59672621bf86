"""The images' recipes, by their text: what they promise in images/README.md. Building them needs a container tool."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from tests.charts.documents import PLATFORM, ROOT, values

RECIPES = ["Dockerfile.frontend", "Dockerfile.worker", "images/Dockerfile.operator"]
BAKE = ROOT / "images/docker-bake.hcl"


def instructions(name: str) -> list[tuple[str, str]]:
    """`(instruction, rest)`, continued lines joined, comments gone."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def last_stage(name: str) -> list[tuple[str, str]]:
    """What is shipped."""
    found = instructions(name)
    start = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return found[start:]


@pytest.mark.parametrize("name", RECIPES)
def test_an_image_runs_without_root(name: str) -> None:
    """By number, since `runAsNonRoot` can't look a name up."""
    assert ("USER", "1000:1000") in last_stage(name)


@pytest.mark.parametrize("name", RECIPES)
def test_the_build_is_left_behind(name: str) -> None:
    """The shipped stage only copies: no package manager runs in it."""
    assert [word for word, _ in instructions(name)].count("FROM") == 2
    assert [rest for word, rest in last_stage(name) if word == "RUN"] == []


@pytest.mark.parametrize("name", RECIPES)
def test_no_compiler_is_installed(name: str) -> None:
    """Wheels only; nothing comes from a distribution."""
    assert re.findall(r"apt-get|apk |gcc|build-essential", (ROOT / name).read_text()) == []


@pytest.mark.parametrize("name", RECIPES)
def test_packages_are_pinned(name: str) -> None:
    """Each installation that resolves anything does so within the lock."""
    runs = [rest for word, rest in instructions(name) if word == "RUN" and " install " in rest]
    assert len(runs) == 2
    assert all("-c constraints.txt" in run or "--no-deps" in run for run in runs)


@pytest.mark.parametrize("name", RECIPES)
def test_the_base_is_an_argument_with_a_pinned_default(name: str) -> None:
    """Whoever has another base gives it; who doesn't gets the same as last time, in every way of building."""
    defaults = dict(rest.split("=", 1) for word, rest in instructions(name) if word == "ARG" and "=" in rest)
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", defaults["BASE"])
    assert f'"{defaults["BASE"]}"' in BAKE.read_text()
    assert all(rest.startswith("${BASE}") for word, rest in instructions(name) if word == "FROM")


@pytest.mark.parametrize("name", RECIPES)
def test_the_standard_library_is_safe(name: str) -> None:
    """No folder called `operator` can hide Python's module, in the build or when it runs."""
    stages = [rest for word, rest in instructions(name) if word == "ENV"]
    assert len(stages) == 2
    assert all("PYTHONSAFEPATH=1" in stage for stage in stages)


@pytest.mark.parametrize("name", RECIPES)
def test_the_entry_point_is_a_module(name: str) -> None:
    """What the image starts can be imported."""
    (entry,) = [rest for word, rest in last_stage(name) if word == "ENTRYPOINT"]
    module = re.findall(r'"([^"]+)"', entry)[-1]
    assert importlib.util.find_spec(f"{module}.__main__")


@pytest.mark.parametrize("name", RECIPES)
def test_everything_that_is_copied_is_in_the_context(name: str) -> None:
    """The wheel needs each portion; .dockerignore lets through exactly what the recipes copy."""
    copies = [rest.split() for word, rest in instructions(name) if word == "COPY" and "--from" not in rest]
    copied = {source for words in copies for source in words[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert copied == allowed
    assert {Path(package).parts[0] for package in wheel["packages"]} <= copied
    assert [source for source in copied if not (ROOT / source).exists()] == []


def test_the_bake_file_makes_what_the_chart_asks_for() -> None:
    """Every image that the chart names by default is a target, and the other way round."""
    images = values(PLATFORM)["pipelines"]["images"]
    asked = {values(PLATFORM)["operator"]["image"]["repository"], images["frontend"], *images["workers"].values()}
    made = {
        f"dynamo-pipelines/{name}" for name in re.findall(r"\$\{REGISTRY\}/([\w-]+):\$\{VERSION\}", BAKE.read_text())
    }
    assert made == asked


def test_the_bake_file_names_files_that_exist() -> None:
    """Each target's recipe is here."""
    recipes = set(re.findall(r'dockerfile\s*=\s*"([^"]+)"', BAKE.read_text()))
    assert recipes == set(RECIPES)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f'default = "{version}"' in BAKE.read_text()
