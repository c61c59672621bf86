"""The traps of one namespace package spread over five folders, each with its guard.

A root folder called `operator/` and a namespace called `dynamo` that another
distribution also claims can each break everything at a distance; these tests name the
file that did it.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PORTIONS = {
    "dynamo.runtime": "sdk", "dynamo.llm": "sdk", "dynamo._core": "sdk", "dynamo.engine_catalog": "sdk",
    "dynamo.frontend": "frontend", "dynamo.router": "frontend",
    "dynamo.worker": "worker", "dynamo.operator": "operator", "dynamo.cli": "cli",
    "dynamo.mocker": "worker", "dynamo.vllm": "worker", "dynamo.sglang": "worker", "dynamo.trtllm": "worker",
}  # fmt: skip
FOLDERS = sorted(set(PORTIONS.values()))
CODE = [*FOLDERS, "tests", "bench"]
GPU_ENGINES = {"vllm", "sglang", "trtllm"}
MOST_FILES = 16
"""In one folder: as many as are taken in at a glance."""
FLAT = re.compile(r"charts/[^/]+/templates|gitops/.+/testdata")
"""Folders that Helm and Argo CD want flat."""
NO_VERB = re.compile(
    r"(an?|the|its?|it's|his|he|she|her|they|their|theirs|this|that|these|those|who|whose|what|which|one|each|every|all|"
    r"any|some|none|no|both|neither|nothing|somebody|nobody|everybody|as|of|for|from|in|with|where|when|whether|how|why|"
    r"until)\b",
    re.IGNORECASE,
)
"""No docstring of a function begins with one of them: it says first what the function does."""
GENERATED = re.compile(r"docs/reference/")
MOST_COLUMNS = 140
VAGUE = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}


def our_files() -> list[Path]:
    """Everything that would be committed; without git (an unpacked archive), everything that is not hidden or made."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        answer = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return sorted(path for path in ROOT.rglob("*") if path.is_file() and not _made(path))
    return sorted(path for name in answer.stdout.split("\0") if name and (path := ROOT / name).is_file())


def _made(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return any(part.startswith(".") or part in ("__pycache__", "dist", "build", "results") for part in parts)


def modules() -> list[Path]:
    """Our Python files."""
    return [path for path in our_files() if path.suffix == ".py"]


def named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("how", [[], ["-S"], ["-I"]], ids=["plain", "no site", "isolated"])
def test_the_standard_operator_wins_in_the_root(how: list[str]) -> None:
    """`import operator`, started in the repository's root, finds the standard library's module."""
    code = "import operator; print(operator.__name__, operator.eq.__name__, operator.__file__ or 'built in')"
    answer = subprocess.run(
        [sys.executable, *how, "-c", code], cwd=ROOT, env={}, check=True, capture_output=True, text=True
    )
    assert answer.stdout.startswith("operator eq")
    assert str(ROOT / "operator") not in answer.stdout


def test_no_top_level_folder_is_a_package() -> None:
    """A root `operator/__init__.py` would shadow the standard library; no top folder may have one."""
    assert named(sorted(ROOT.glob("*/__init__.py"))) == []


def test_nothing_lies_directly_in_the_namespace() -> None:
    """A file in `*/dynamo/` would put the folder that holds `operator` on a script's path, or end the namespace."""
    assert named(sorted(ROOT.glob("*/dynamo/*.py"))) == []


def test_the_namespace_is_ours_alone() -> None:
    """No distribution (ai-dynamo, say) has put a regular package `dynamo` in front of our portions."""
    import dynamo

    assert getattr(dynamo, "__file__", None) is None, f"{dynamo.__file__} hides dynamo.runtime and the others"


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_is_a_typed_package(portion: str) -> None:
    """Each portion has a docstring of its own and tells type checkers that it is typed."""
    folder = ROOT / PORTIONS[portion] / portion.replace(".", "/")
    assert (folder / "py.typed").is_file()
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


def test_tests_are_not_packages() -> None:
    """Test files may share a name only because no folder of tests is a package."""
    assert named(sorted((ROOT / "tests").rglob("__init__.py"))) == []


def test_type_checking_covers_every_file() -> None:
    """mypy gets folders, since `packages = ["dynamo"]` would silently check one portion only."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert set(settings["files"]) >= set(CODE)
    assert "packages" not in settings
    outside = [path for path in modules() if path.relative_to(ROOT).parts[0] not in settings["files"]]
    assert named(outside) == []


def test_the_lock_covers_what_is_installed() -> None:
    """Every dependency of the development environment is pinned; engines that need a GPU are not in it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [line for name, lines in extras.items() if name not in GPU_ENGINES for line in lines]
    names = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower().replace("_", "-") for line in wanted} - {"dynamo-pipelines"}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert names - pinned == set(), "run `make lock`"


def test_files_stay_short() -> None:
    """No module grows past what is read in one sitting."""
    lengths = {path: len(path.read_text().splitlines()) for path in modules()}
    assert [f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > 450] == []


def test_folders_stay_small() -> None:
    """No folder of the repository has more files than are taken in at a glance."""
    files = Counter(path.relative_to(ROOT).parent for path in our_files() if path.name != "py.typed")
    large = {str(folder): number for folder, number in files.items() if number > MOST_FILES}
    assert {folder: number for folder, number in large.items() if not FLAT.fullmatch(folder)} == {}


def test_functions_stay_short() -> None:
    """No function of the packages is longer than 50 lines."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in modules()
        if path.relative_to(ROOT).parts[0] in FOLDERS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (node.end_lineno or 0) - node.lineno >= 50
    ]
    assert long == []


def test_modules_have_telling_names() -> None:
    """A module is named after what it does."""
    assert named([path for path in modules() if path.stem.strip("_") in VAGUE]) == []


def test_every_module_says_why_it_exists() -> None:
    """Each module of the packages opens with a docstring."""
    silent = [
        path
        for path in modules()
        if path.relative_to(ROOT).parts[0] in FOLDERS and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert named(silent) == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    """ruff's D401 knows some articles and pronouns, and no properties; this knows the words that came before."""
    folders = tuple(f"{folder}/" for folder in (*FOLDERS, "docs/generate"))
    named_otherwise = [
        f"{place}:{node.lineno}: {text.splitlines()[0]}"
        for path in modules()
        if (place := str(path.relative_to(ROOT))).startswith(folders)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node))
        if NO_VERB.match(text)
    ]
    assert named_otherwise == []


def test_prose_is_wrapped() -> None:
    """Paragraphs and lists of the documents fit a window; tables, fences and what is made of code may be wider."""
    wide, fence = [], False
    for path in our_files():
        place = str(path.relative_to(ROOT))
        if not place.startswith("docs/") or path.suffix != ".md" or GENERATED.match(place):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            fence ^= line.lstrip().startswith("```")
            if not fence and len(line) > MOST_COLUMNS and not line.lstrip().startswith("|"):
                wide.append(f"{place}:{number}")
    assert wide == []


def test_no_machine_is_named() -> None:
    """No tracked file holds a path of one machine or the address of one package index."""
    folders = "|".join(["home/[a-z]", "root/", "work/", "opt/wheels", "Users/[a-zA-Z]"])
    traces = re.compile(rf"(?<![\w.~-])/(?:{folders})|files\.pythonhosted|/simple/|index-url[ =]|127\.0\.0\.1:3128")
    own = {Path(__file__), ROOT / "Makefile"}
    results = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in our_files()
        if path not in own
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if traces.search(line)
    ]
    assert results == []


def test_no_test_is_skipped() -> None:
    """A test that can't run here is not written; there is no skip to hide behind."""
    marks = re.compile(r"pytest\.(?:skip|importorskip|mark\.skip|mark\.xfail|xfail)")
    skipping = [p for p in modules() if p != Path(__file__) and marks.search(p.read_text())]
    assert named(skipping) == []
