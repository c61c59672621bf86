"""The images' recipes, by their text: what they promise in images/README.md. Building them needs a container tool."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from images.locks import ALONE, ENVIRONMENTS, IMAGES
from images.needs import needs as needs_of
from tests.charts.documents import PLATFORM, ROOT, values

from dynamo.operator.api.v1alpha1 import Engine

RECIPES = ["Dockerfile.frontend", "Dockerfile.worker", "images/Dockerfile.operator"]
SHARED = {"build", "code", "runtime"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BAKE = ROOT / "images/docker-bake.hcl"


def instructions(name: str) -> list[tuple[str, str]]:
    """`(instruction, rest)`, continued lines joined, comments gone."""
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines()) if word]


def last_stage(name: str) -> list[tuple[str, str]]:
    """What is shipped."""
    lines = instructions(name)
    start = max(i for i, (word, _) in enumerate(lines) if word == "FROM")
    return lines[start:]


@pytest.mark.parametrize("name", RECIPES)
def test_an_image_runs_without_root(name: str) -> None:
    """By number, since `runAsNonRoot` can't look a name up."""
    assert ("USER", "1000:1000") in last_stage(name)


def stages(name: str) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, its `FROM` first; what stands before the first one is left out."""
    lines = instructions(name)
    starts = [number for number, (word, _) in enumerate(lines) if word == "FROM"]
    return [lines[start:end] for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)]


@pytest.mark.parametrize("name", RECIPES)
def test_the_build_is_left_behind(name: str) -> None:
    """What is shipped starts from the base, copies an environment that is ready, and removes pip: nothing installs."""
    named = {stage[0][1].partition(" AS ")[2]: stage for stage in stages(name)}
    *_, shipped = stages(name)
    runtime = named["runtime"]
    assert runtime[0] == ("FROM", "${BASE} AS runtime")
    assert shipped[0][1] in ("runtime", "engine")
    assert [rest for word, rest in shipped if word in ("RUN", "ADD")] == []
    assert [rest for word, rest in shipped if word == "COPY"] == [
        "--from=packages /opt/dynamo /opt/dynamo",
        "--from=code /code/opt/dynamo /opt/dynamo",
    ]
    assert "site-packages/*" in runtime[1][1]


@pytest.mark.parametrize("name", RECIPES)
def test_no_compiler_is_installed(name: str) -> None:
    """Wheels only; from a distribution comes one library that an engine's wheel needs."""
    text = (ROOT / name).read_text()
    assert re.findall(r"apk |gcc|build-essential|-dev\b", text) == []
    assert re.findall(r"apt-get install --yes --no-install-recommends ([^&]*) &&", text) == (
        ["libgomp1"] if name == "Dockerfile.worker" else []
    )
    assert text.count("apt-get install") == text.count("apt-get install --yes --no-install-recommends")


@pytest.mark.parametrize("name", RECIPES)
def test_packages_are_pinned(name: str) -> None:
    """Files are named by hash; engines without a lock keep to the versions. Our own wheel asks no index."""
    runs = [rest for word, rest in instructions(name) if word == "RUN" and " -m pip " in rest]
    assert len(runs) == 3
    bound = "-c constraints.txt" if name == "Dockerfile.worker" else "--require-hashes"
    assert ["--require-hashes" in runs[0], bound in runs[1], "--no-deps --no-index" in runs[2]] == [True] * 3


def test_locks_hold_the_versions_of_the_constraints() -> None:
    """Every line has hashes; what the images and the environments install is what the tests run with."""
    pinned = versions(ROOT / "constraints.txt")
    locks = {path.stem: path for path in sorted((ROOT / "locks").glob("*.txt"))}
    assert set(locks) == {"build", *IMAGES, *ALONE, *ENVIRONMENTS}, "run `make lock`"
    for name, path in locks.items():
        assert versions(path).items() <= pinned.items(), f"{name}: run `make lock`"
        entries = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        bare = [a for a, b in pairwise([*entries, ""]) if "==" in a and "--hash=sha256:" not in b]
        assert bare == [], name
    assert versions(locks["dev"]) == pinned


@pytest.mark.parametrize("name", [*IMAGES, *ALONE])
def test_a_lock_covers_what_its_image_asks_for(name: str) -> None:
    """A new requirement in pyproject.toml is in it."""
    wanted = needs_of(PROJECT, (IMAGES | ALONE)[name], name in ALONE)
    names = {plain(re.split(r"[<>=\[;! ]", line)[0]) for line in wanted}
    assert names <= versions(ROOT / f"locks/{name}.txt").keys(), "run `make lock`"


def versions(path: Path) -> dict[str, str]:
    """What a file pins, by name."""
    lines = [line.partition(" ")[0] for line in path.read_text().splitlines() if "==" in line and line[0] != "#"]
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("name", RECIPES)
def test_the_index_leaves_no_trace(name: str) -> None:
    """Its settings are a secret of the build, its downloads a cache of the builder: neither ends up in a layer."""
    asking = [run for word, run in instructions(name) if word == "RUN" and re.search("-c constraints|--require", run)]
    mounts = "--mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=cache,target=/var/cache/pip"
    assert len(asking) == 2
    assert [run for run in asking if not run.startswith(mounts)] == []


@pytest.mark.parametrize("name", RECIPES)
def test_a_change_of_the_source_installs_no_package(name: str) -> None:
    """Our code is copied in a stage of its own, and the packages know of pyproject.toml only what they need."""
    copied = {
        stage[0][1].partition(" AS ")[2]: {rest for word, rest in stage if word == "COPY"} for stage in stages(name)
    }
    if name == "Dockerfile.worker":
        assert copied["packages"] == {"constraints.txt ./", "--from=needs /src/needs.txt ./"}
        assert copied["needs"] == {"pyproject.toml images/needs.py ./", "locks locks"}
    else:
        assert copied["packages"] == {f"locks/{name.partition('.')[2]}.txt needs.txt"}
    assert [word for word, _ in last_stage(name)][-2:] == ["COPY", "COPY"]
    assert copied["build"] == {"locks/build.txt ./"}


@pytest.mark.parametrize("name", RECIPES)
def test_the_base_is_an_argument_with_a_pinned_default(name: str) -> None:
    """Whoever has another base gives it; who doesn't gets the same as last time, in every way of building."""
    defaults = dict(rest.split("=", 1) for word, rest in instructions(name) if word == "ARG" and "=" in rest)
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", defaults["BASE"])
    assert f'"{defaults["BASE"]}"' in BAKE.read_text()
    assert defaults["BUILDER"] == "${BASE}"
    starts = {stage[0][1].partition(" AS ")[0] for stage in stages(name)}
    assert starts - {"engine"} == {"${BUILDER}", "${BASE}", "build", "runtime"}


@pytest.mark.parametrize("name", RECIPES)
def test_an_image_says_what_it_is(name: str) -> None:
    """OCI labels; the version is the project's."""
    (label,) = [rest for word, rest in last_stage(name) if word == "LABEL"]
    keys = re.findall(r"org\.opencontainers\.image\.(\w+)=", label)
    assert keys == ["title", "description", "licenses", "version"]
    assert ("ARG", f"VERSION={PROJECT['version']}") in last_stage(name)


def test_a_model_brings_its_licence() -> None:
    """A worker's image with more packages can say theirs; the one with Gemma does."""
    worker = last_stage("Dockerfile.worker")
    assert ("ARG", 'LICENSES="Apache-2.0"') in worker
    assert any('licenses="${LICENSES}"' in rest for word, rest in worker if word == "LABEL")
    gemma = (ROOT / "e2e/images/Dockerfile.gemma").read_text()
    assert 'licenses="Apache-2.0 AND LicenseRef-Gemma"' in gemma


def test_the_recipes_differ_in_what_they_must_only() -> None:
    """Three files, one way: the stages that are the same stay the same, and share their layers."""
    kept = {name: [stage for stage in stages(name) if stage[0][1].partition(" AS ")[2] in SHARED] for name in RECIPES}
    assert [kept[name] for name in RECIPES] == [kept[RECIPES[0]]] * len(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_standard_library_is_safe(name: str) -> None:
    """No folder called `operator` can hide Python's module, in the build or when it runs."""
    settings = [rest for word, rest in instructions(name) if word == "ENV"]
    assert len(settings) == (3 if name == "Dockerfile.worker" else 2)
    assert all("PYTHONSAFEPATH=1" in setting for setting in settings)


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
    named = {source for words in copies for source in words[:-1]}
    copied = {"locks" if source.startswith("locks/") else source for source in named}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    workers = set() if name == "Dockerfile.worker" else {"images/beside.py", "images/needs.py", "constraints.txt"}
    assert copied | workers == allowed
    assert {Path(package).parts[0] for package in wheel["packages"]} <= copied
    assert [source for source in named if not (ROOT / source).exists()] == []


def needs(*extras: str) -> subprocess.CompletedProcess[str]:
    """Ask images/needs.py as the recipes do."""
    command = [sys.executable, str(ROOT / "images/needs.py"), str(ROOT / "pyproject.toml"), *extras]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_lock_is_taken_where_the_engine_has_one() -> None:
    """Not for another device's build, nor for an engine that constraints.txt doesn't cover."""
    locks = ["--locks", str(ROOT / "locks")]
    assert needs("worker", "llamacpp", *locks).stdout == (ROOT / "locks/worker-llamacpp.txt").read_text()
    assert needs("worker", "echo_core", *locks).stdout == (ROOT / "locks/worker.txt").read_text()
    assert needs("worker", "vllm", *locks).stdout == needs("worker", "vllm").stdout
    assert "--hash" not in needs("worker", "mistralrs", *locks, "--variant", "cuda").stdout


def test_an_image_installs_what_its_extras_name() -> None:
    """The project's requirements, traces' and the engine's; not the command line, which others bring."""
    built_in, engine = needs("worker", "mocker").stdout.split("\n"), needs("worker", "llamacpp").stdout.split("\n")
    assert [line for line in built_in if line] == sorted(
        [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["otel"]]
    )
    assert set(engine) - set(built_in) == {
        line for line in PROJECT["optional-dependencies"]["llamacpp"] if not line.startswith(PROJECT["name"])
    }


def test_the_operator_imports_only_what_its_image_holds() -> None:
    """Its image leaves out what the runtime needs, so its extra must name all that it imports."""
    held = versions(ROOT / "locks/operator.txt").keys()
    distributions = importlib.metadata.packages_distributions()
    table = {name: {plain(entry) for entry in distributions.get(name, [])} for name in imports(ROOT / "operator")}
    assert {name: names for name, names in table.items() if not names & held} == {}


def imports(folder: Path) -> set[str]:
    """Top-level modules that the files below `folder` import, without ours and the standard library's."""
    nodes = [node for file in folder.rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"dynamo"}


def plain(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_engine_of_the_api_has_a_worker_image() -> None:
    """An engine that the CRD takes can be built into an image."""
    refused = {engine.value: answer.stderr for engine in Engine if (answer := needs("worker", engine.value)).returncode}
    assert refused == {}


def test_an_unknown_engine_is_refused_by_name() -> None:
    """And the ones that there are get named."""
    answer = needs("worker", "lamacpp")
    assert answer.returncode == 1
    assert answer.stderr.startswith("lamacpp is no engine or extra: use one of mocker, ")


def test_the_bake_file_makes_what_the_chart_asks_for() -> None:
    """Every image that the chart names by default is a target, and the other way round; those for GPUs are extra."""
    images = values(PLATFORM)["pipelines"]["images"]
    asked = {values(PLATFORM)["operator"]["image"]["repository"], images["frontend"], *images["workers"].values()}
    made = {
        f"dynamo-pipelines/{name}" for name in re.findall(r"\$\{REGISTRY\}/([\w-]+):\$\{VERSION\}", BAKE.read_text())
    }
    engines = ("vllm", "sglang", "trtllm", "mistralrs-cuda", "llamacpp-cuda")
    assert made - asked == {f"dynamo-pipelines/worker-{name}" for name in engines}
    assert asked <= made


def test_the_bake_file_names_files_that_exist() -> None:
    """Each target's recipe is here."""
    recipes = set(re.findall(r'dockerfile\s*=\s*"([^"]+)"', BAKE.read_text()))
    assert recipes == set(RECIPES)
    assert f'default = "{PROJECT["version"]}"' in BAKE.read_text()
