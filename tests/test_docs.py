"""What the documents say is so: files that they name exist, tables follow the code."""

import re
from pathlib import Path

import pytest
from docs.generate import markdown
from docs.generate.compatibility import states
from docs.generate.compatibility.printed import ROWS
from docs.generate.compatibility.printed_row import ALL
from docs.generate.compatibility.variables import STATES

import dynamo.llm
import dynamo.runtime

ROOT = Path(__file__).parent.parent
FIRST = [ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "e2e/README.md")]
PAGES = [*FIRST, *sorted((ROOT / "charts").glob("*/README.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = ("sdk", "operator", "frontend", "worker", "cli")
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
CODE = re.compile(r"`[^`\n]*`")
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEAD = re.compile(r"^#+ (.+)$", re.MULTILINE)
FILE = re.compile(
    r"`((?:sdk|operator|frontend|worker|cli|tests|docs|examples|bench|crds|charts|images|e2e)/[\w./*-]*)`"
)
TEST = re.compile(r"`((?:tests|e2e)/[\w/]+\.py)::(\w+)`")
VARIABLE = re.compile(r'"((?:DYN|ETCD|NATS)_[A-Z0-9_]+)"')


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=title)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link of a page is a file of the repository; behind a #, a title of that page."""
    text = CODE.sub("", FENCE.sub("", path.read_text()))
    targets = [(file, part) for file, part in LINK.findall(text) if "://" not in file]
    assert [file for file, _ in targets if not (path.parent / file).exists()] == []
    pages = [(path.parent / file if file else path, part) for file, part in targets if part]
    assert [f"{page.name}#{part}" for page, part in pages if part not in anchors(page)] == []


def anchors(page: Path) -> set[str]:
    """What a link may name of a page; a title that is there again gets a number."""
    names: set[str] = set()
    for heading in HEAD.findall(FENCE.sub("", page.read_text())):
        name = markdown.anchor(heading)
        again = (f"{name}-{number}" for number in range(1, 100))
        names.add(name if name not in names else next(answer for answer in again if answer not in names))
    return names


@pytest.mark.parametrize("path", PAGES, ids=title)
def test_named_files_exist(path: Path) -> None:
    """Every path in backticks is there."""
    named = FILE.findall(path.read_text())
    named = [name for name in named if "NAME" not in name]  # a file that is still to be written
    assert [name for name in named if not list(ROOT.glob(name.rstrip("/")))] == []


def test_the_request_path_names_its_files() -> None:
    """A newcomer finds the module of each step of a request."""
    text = (ROOT / "docs/contributing/request-path.md").read_text()
    assert len({name for name in FILE.findall(text) if name.endswith(".py")}) >= 8


def test_compatibility_follows_the_code() -> None:
    """On the pages of docs/reference/compatibility/ every name has a state, and no cell is empty."""
    text = "".join(path.read_text() for path in sorted((ROOT / "docs/reference/compatibility").glob("*.md")))
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line for line in lines if not line.startswith(("| ---", "| state | |"))]
    assert len(rows) > 400
    assert [row for row in rows if any(not cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])] == []


def test_a_variable_has_one_state() -> None:
    """What a setting or a connection reads says so itself; the table beside them has the others only."""
    assert [name for name in STATES if states.reader_of(name)] == []


def test_the_python_reference_follows_the_docstrings() -> None:
    """docs/reference/python.md has every public name once."""
    text = (ROOT / "docs/reference/python.md").read_text()
    for package in (dynamo.runtime, dynamo.llm):
        matches = re.findall(rf"^### {package.__name__}\.(\w+)$", text, re.MULTILINE)
        assert sorted(matches) == sorted(package.__all__)


def test_what_the_guides_print_names_tests_that_exist() -> None:
    """Each thing that NVIDIA Dynamo's guides print has a name, pages, and a test that is there."""
    assert len({row.name for row in ROWS}) == len(ROWS) > 90
    assert [row for row in ROWS if not row.pages or not set(row.pages) <= set(ALL)] == []
    assert [row.test for row in ROWS if not _is_test(*row.test.split("::"))] == []


def test_promises_name_tests_that_exist() -> None:
    """Each line of a table of docs/contributing/promises.md has one at least."""
    text = (ROOT / "docs/contributing/promises.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    promised = [line for line in lines if not line.startswith("| |")]
    assert promised
    assert [line for line in promised if not TEST.search(line)] == []
    named = set(TEST.findall(text))
    assert [(file, name) for file, name in sorted(named) if not _is_test(file, name)] == []


def _is_test(file: str, name: str) -> bool:
    path = ROOT / file
    return path.is_file() and re.search(rf"^(async )?def {name}\(", path.read_text(), re.MULTILINE) is not None


def test_every_variable_is_documented() -> None:
    """A DYN_, ETCD_ or NATS_ variable that the code names stands in one of the two pages of names."""
    pages = ("configuration", "compatibility/variables", "compatibility/flags")
    known = "".join((ROOT / f"docs/reference/{name}.md").read_text() for name in pages)
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    read = {name for path in sources for name in VARIABLE.findall(path.read_text())}
    assert sorted(name for name in read if f"`{name}`" not in known) == []


def test_make_lists_its_verbs() -> None:
    """The README's verbs are targets of the Makefile."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    verbs = set(re.findall(r"`make (\w+)", (ROOT / "README.md").read_text()))
    assert verbs
    assert verbs <= targets
