"""Writes docs/reference/compatibility/: what people typed for NVIDIA Dynamo, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from docs.generate.compatibility import core_names, python_llm, runtime_names, states
from docs.generate.compatibility.forms import FORMS
from docs.generate.compatibility.nvidia_flags import DEFAULTS, FLAGS, OF_VARIABLES
from docs.generate.compatibility.printed import TOPICS
from docs.generate.compatibility.printed_row import ALL, Row
from docs.generate.compatibility.routes import OF_WORKERS, ROUTES
from docs.generate.compatibility.variables import NAMES
from docs.generate.markdown import CELL, anchor, code, page, prose, table

VERSIONS: Final = {"A": "0.3", "B": "0.8", "C": "1.6"}
"""Packages whose names were read, for the versions before and around each."""
NOTHING: Final = "–"
_MADE: Final = "Made from the code by `make generate`; don't edit it by hand."
_LEGEND: Final = (
    "*Versions:* 0.3 stands for NVIDIA Dynamo 0.1 to 0.3, 0.8 for 0.4 to 0.9, 1.6 for 1.0 to 1.6. "
    "The [states](index.md#states) are explained on the first page."
)
INDEX: Final = f"""# Compatibility with NVIDIA Dynamo

{_MADE}

Programs and command lines written for NVIDIA Dynamo 0.1 to 1.6 run here, or are refused with a sentence that says what
to do instead. These pages list every name and its state:

- [Flags](flags.md): `in=` and `out=`, and the flags of each program
- [Variables](variables.md)
- [Python names](python.md) of `dynamo.runtime`, `dynamo.llm` and `dynamo._core`
- [Guides and endpoints](pages.md): what its guides print, with a test for each; HTTP and worker endpoints

*Different default* shows the default there and the one here. Coming from NVIDIA Dynamo? Start with the
[migration guide](../../migrate/from-dynamo.md).

## States

- **works**: as there, under the same name; if another name is given, under that one.
- **renamed**: understood; a line on standard error has the current name.
- **accepted, changes nothing**: understood; a line on standard error says why it isn't needed.
- **refused**: exit code 2 and one sentence that says what to do instead. For Python names: an `ImportError` or an
  `InvalidArgument` with that sentence.
- **passed to the engine**: an argument of vLLM, SGLang or TensorRT-LLM, which checks it.
- **not read**: a variable that changes nothing; the remark names what does.
- **served**, **not there**: an endpoint that answers, or answers 404.
- **up to the engine**: a line for vLLM, SGLang or TensorRT-LLM; the engine's page has the rest.
- **another way**: the remark says what does it here.
- **nothing to do**: a step that isn't needed.

## Differences on purpose

- `/health` of 1.6 is 200 without workers, here as well; 0.8 answered 503.
- `finish_reason` is never null at the end of a stream.
- `tokens_out` of a batch counts the tokens that were produced.
- A bad line of a batch doesn't end it.
- `--help` exits with code 0.
"""


def index() -> str:
    """Write the first page."""
    return INDEX


def flags() -> str:
    """Write the page of command lines."""
    sections = {"in= and out=": _table(("form", "versions", "state", "here"), _forms())}
    for program, by_version in FLAGS.items():
        head = ("flag", "versions", "state", "different default", "here")
        sections[program] = _table(head, _flags(program, by_version))
    return _page("Flags of NVIDIA Dynamo", sections)


def variables() -> str:
    """Write the page of variables."""
    formers = {name for former in states.former_flags() for name in former.env.split(", ") if name and "*" not in name}
    known = ((name, *states.variable_state(name)) for name in sorted({*NAMES.split(), *formers}))
    rows = ((code(name), state, _variable_default(name), remark) for name, state, remark in known)
    return _page(
        "Variables of NVIDIA Dynamo", {"All": _table(("variable", "state", "different default", "here"), rows)}
    )


def python() -> str:
    """Write the page of Python names."""
    head = ("name", "versions", "state", "here")
    calls = ((code(call), *rest) for call, *rest in python_llm.FORMS)
    names = ((code(name), *rest) for name, *rest in python_llm.rows())
    sections = {
        "dynamo.runtime": _table(head, runtime_names.rows()),
        f"{python_llm.MODULE}: calls": f"{python_llm.ABOUT}\n\n" + _table(("call", *head[1:]), calls),
        f"{python_llm.MODULE}: names": _table(head, names),
        core_names.MODULE: f"{core_names.ABOUT}\n\n" + _table(head, core_names.rows()),
    }
    return _page("Python names of NVIDIA Dynamo", sections)


def guides() -> str:
    """Write the page of what guides print, and of endpoints."""
    head = ("printed", "in", "state", "here", "test")
    sections = {topic: _table(head, map(_printed, rows)) for topic, rows in TOPICS.items()}
    routes = ((code(f"{method} {path}"), *rest) for method, path, *rest in ROUTES)
    sections["HTTP endpoints"] = _table(("endpoint", "versions", "state", "here"), routes)
    sections["Endpoints of workers"] = _table(("endpoint", "versions", "state", "here"), OF_WORKERS)
    about = prose(
        f"The guides to `dynamo-run` of {', '.join(ALL[:-1])} and {ALL[-1]}, whole: each command and program, in our "
        "words. Words in capitals are the reader's own. The last column is a test that does it, on real parts; for "
        "engines that need GPUs up to where their package is missing."
    )
    return _page("Guides and endpoints of NVIDIA Dynamo", sections, about)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "compatibility/index.md": index,
    "compatibility/flags.md": flags,
    "compatibility/variables.md": variables,
    "compatibility/python.md": python,
    "compatibility/pages.md": guides,
}


def _page(title: str, sections: Mapping[str, str], about: str = "") -> str:
    contents = "\n".join(f"- [{name}](#{anchor(name)})" for name in sections)
    parts = [f"# {title}", _MADE, prose(_LEGEND), about, contents]
    for name, text in sections.items():
        parts += [f"## {name}", text]
    return page(parts).replace("](../", "](../../").replace("](../../../", "](../../")


def _forms() -> Iterator[tuple[str, ...]]:
    for form, versions, line, text in FORMS:
        state, why = states.line_state(line.split())
        yield code(form), versions, state, text if state == states.WORKS else f"{text}: {why}"


def _flags(program: str, by_version: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    differing = DEFAULTS.get(program, {})
    for flag, versions in sorted((flag, versions) for versions, names in by_version.items() for flag in names.split()):
        state, remark = states.flag_state(program, flag)
        there = differing.get(flag, "")
        default = f"{there}; here {states.own_default(program, flag)}" if there else NOTHING
        yield code(flag), versions, state, default, remark


def _variable_default(name: str) -> str:
    there, here = OF_VARIABLES.get(name, ("", ""))
    return f"{there}; here {here}" if there else NOTHING


def _printed(row: Row) -> tuple[str, ...]:
    printed = code(row.what) if row.is_line else row.what
    return (printed, ", ".join(row.pages), *states.row_state(row), code(row.test))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells that are too long become notes below it."""
    notes: list[str] = []
    lines = [[_cell(text, notes) for text in _with_versions(head, row)] for row in rows]
    below = "\n".join(prose(f"{number}. {text}", indent="   ") for number, text in enumerate(notes, 1))
    return table(head, lines) + (f"\nNotes:\n\n{below}" if notes else "")


def _with_versions(head: Sequence[str], row: Sequence[str]) -> list[str]:
    return [
        ", ".join(VERSIONS.get(part, part) for part in text.split(", ")) if title == "versions" else text
        for title, text in zip(head, row, strict=True)
    ]


def _cell(text: str, notes: list[str]) -> str:
    if len(" ".join(text.split()).replace("|", "\\|")) <= CELL:
        return text
    if text not in notes:
        notes.append(text)
    return f"note {notes.index(text) + 1}"
