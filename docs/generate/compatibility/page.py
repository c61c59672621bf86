"""Writes docs/reference/compatibility.md: `make generate`, checked by tests/test_docs.py.

The state of a flag, a form, a line or a variable is asked of the code; a name without a state is a `LookupError`, and
so fails the test.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
from docs.generate.compatibility import core_names, python_llm, runtime_names
from docs.generate.compatibility.forms import FORMS
from docs.generate.compatibility.nvidia_flags import FLAGS
from docs.generate.compatibility.printed import TOPICS
from docs.generate.compatibility.printed_row import ALL, TO_THE_ENGINE, Row
from docs.generate.compatibility.routes import OF_WORKERS, ROUTES
from docs.generate.compatibility.variables import NAMES, STATES
from docs.generate.configuration_page import CONNECTIONS, OTHERS

from dynamo.cli.run.grammar import DEFAULTS, DYN, CommandError
from dynamo.cli.run.legacy_flags import FORMER as OF_RUN
from dynamo.cli.run.main import read
from dynamo.cli.run.settings import RunSettings
from dynamo.frontend.legacy_flags import FORMER as OF_FRONTEND
from dynamo.frontend.settings import FrontendSettings
from dynamo.router.legacy_flags import FORMER as OF_ROUTER
from dynamo.router.settings import RouterSettings
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.process.legacy_flags import REFUSED, LegacyFlag
from dynamo.runtime.process.settings import options, settings_in
from dynamo.worker.engines import check_engine, check_nodes, check_source
from dynamo.worker.programs.entry import FORMER as OF_WORKER_PROGRAMS
from dynamo.worker.programs.gpu_engines import EngineProgramSettings
from dynamo.worker.programs.mocker import MockerSettings
from dynamo.worker.settings import WorkerSettings

TITLE: Final = """# Compatibility

Made from the code by `make generate`; don't edit it by hand.

What people typed for Dynamo of three ages, and what becomes of it here. A is 0.1 to 0.3 (`dynamo-run`, 2025), B 0.4 to
0.9, C 1.0 to 1.6 (`python -m dynamo.frontend` and its workers, 2026). Flags are those that its packages 0.3.2, 0.8.1
and 1.6.1 print.

| state | |
| --- | --- |
| works | as there, under the same name; where another name is given, under that one |
| renamed | it is understood, and a line on standard error says today's name |
| accepted, changes nothing | it is understood, and a line on standard error says why it needs no saying |
| refused | exit code 2 and one sentence that says what to do instead |
| passed to the engine | an argument of vLLM, SGLang or TensorRT-LLM, which judges it |
| not read | a variable that changes nothing, and what does |
| not there | an endpoint that answers 404 |
| up to the engine | a line for vLLM, SGLang or TensorRT-LLM: the engine is told it; its page has the rest |
| another way | what does it here |
| nothing to do | a step that isn't needed |

For Python names, refused means an `ImportError` or an `InvalidArgument` with that sentence; programs are in
[endpoints.md](../how-to/program/endpoints.md).

Where NVIDIA Dynamo errs, this is right instead: `/health` is 503 while no worker is there; `finish_reason` is never
null at the end of a stream; `tokens_out` of a batch counts the tokens that were produced, not those of the text again;
a bad line of a batch doesn't end it; `--help` ends with exit code 0.
"""
GUIDES: Final = f"""## What its guides print

The guides to `dynamo-run` of {", ".join(ALL[:-1])} and {ALL[-1]}, whole: each command and
program, in our words. What stands in capitals is the reader's own. The last column is a test that does it, on real
parts: processes as they are typed, an etcd, a NATS, small models; for engines that want GPUs up to where their package
isn't there.
"""
WORKS: Final = "works"
_WANT_GPUS: Final = ("sglang", "trtllm", "vllm")
PASSED: Final = "passed to the engine"


class Program(NamedTuple):
    """One of NVIDIA Dynamo's programs, as it is here."""

    settings: type[Any]
    former: Sequence[LegacyFlag]
    passes: bool = False
    """What it doesn't know is its engine's."""


PROGRAMS: Final = {
    "dynamo-run": Program(RunSettings, OF_RUN),
    "python -m dynamo.frontend": Program(FrontendSettings, OF_FRONTEND),
    "python -m dynamo.router": Program(RouterSettings, OF_ROUTER),
    "python -m dynamo.mocker": Program(MockerSettings, OF_WORKER_PROGRAMS["mocker"]),
    **{
        f"python -m dynamo.{engine}": Program(EngineProgramSettings, OF_WORKER_PROGRAMS[engine], passes=True)
        for engine in ("vllm", "sglang", "trtllm")
    },
}
_OF_ALL: Final = ("-v", "--version")


def flag_state(program: str, flag: str) -> tuple[str, str]:
    """Return the state of one of NVIDIA Dynamo's flags, and a remark.

    `LookupError` where the code knows nothing of it.
    """
    about = PROGRAMS[program]
    own = {
        name: option for option in options(about.settings) if isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts)
    }  # fmt: skip
    former = next((legacy for legacy in about.former if flag in legacy.flags), None)
    if flag in _OF_ALL:
        return WORKS, "more log lines" if flag == "-v" else "prints the version"
    if flag in own:
        option = own[flag]
        name = f"`--{(option.name or '').replace('_', '-')}`: "
        remark = ("" if name.startswith(f"`{flag}`") else name) + (option.help or "")
        return WORKS, remark + (f" Other values are refused: {former.says}." if former is not None else "")
    if former is not None:
        return former.state, _remark(former)
    if about.passes:
        return PASSED, f"`{flag.removeprefix('--').replace('-', '_')}` of its arguments"
    raise LookupError(f"{program} {flag} has no state: add it to its settings or to its former flags")


def _remark(former: LegacyFlag) -> str:
    to = f"now `{' '.join(word for word in former.to if word != '{}')}`" if former.to else ""
    plain = f"{', '.join(f'`{value}`' for value in former.plain)} is fine; else: " if former.plain else ""
    return "; ".join(filter(None, (to, (plain if former.refused else "") + former.says)))


def reader_of(name: str) -> str:
    """Return what here reads a variable of NVIDIA Dynamo's; empty: nothing."""
    if flags := {f"`--{field}`" for field in _fields_of(name)}:
        return f"as {', '.join(sorted(flags))}"
    entry = {**CONNECTIONS, **OTHERS}.get(name)
    return "" if entry is None else entry[1] or "see docs/reference/configuration.md"


def variable_state(name: str) -> tuple[str, str]:
    """Return the same for a variable as `flag_state` for a flag."""
    if reader := reader_of(name):
        return WORKS, reader
    if name in STATES:
        return STATES[name]
    for former in _formers():
        if name in former.env.split(", "):
            return "not read", _remark(former)
    raise LookupError(f"{name} has no state: add it to variables.py")


def _fields_of(name: str) -> Iterable[str]:
    for kind in (*(program.settings for program in PROGRAMS.values()), WorkerSettings):
        for option in settings_in(kind):
            env = option.field.metadata["env"] or ()
            if name in ((env,) if isinstance(env, str) else env):
                yield option.name.replace("_", "-")


def _formers() -> Iterable[LegacyFlag]:
    for program in PROGRAMS.values():
        yield from program.former


def line_state(words: Sequence[str]) -> tuple[str, str]:
    """Return what becomes of these words after `dynamo-run`: works, how far it goes, or why not."""
    notes = io.StringIO()
    try:
        with contextlib.redirect_stderr(notes):
            run = read(words, terminal=True, installed=DEFAULTS)
    except CommandError as error:
        return REFUSED, str(error)
    except click.ClickException as error:
        return REFUSED, error.message
    said = "; ".join(note.removeprefix("note: ") for note in notes.getvalue().splitlines())
    engine = run.roles.output
    if engine != DYN:
        try:
            settings = WorkerSettings(engine=engine, num_nodes=run.settings.num_nodes, model_path=run.model)
            check_engine(settings.engine)
            check_nodes(settings)
            check_source(settings)
        except DynamoException as error:
            return REFUSED, "; ".join(filter(None, (error.message, said)))
    if engine in _WANT_GPUS:
        return TO_THE_ENGINE, "; ".join(filter(None, (said, f"docs/how-to/serve/engines/{engine}.md")))
    return WORKS, said or f"in={run.roles.input}, out={engine}"


def row_state(row: Row) -> tuple[str, str]:
    """Return the same for what a guide prints; where it is no line of `dynamo-run`, the row says it."""
    state, said = line_state(row.words()) if row.is_line and not row.state else (row.state, "")
    if not state or not (row.here or said):
        raise LookupError(f"what the guides print of {row.name!r} has no state: say it in its row")
    plain = row.here if state == WORKS and row.here else "; ".join(filter(None, (row.here, said)))
    return state, plain


def render() -> str:
    """Write the whole page."""
    forms = []
    for form, ages, line, what in FORMS:
        state, why = line_state(line.split())
        forms.append((_code(form), ages, state, what if state == WORKS else f"{what}: {why}"))
    parts = [TITLE, "## in= and out=\n\n" + _table(("form", "ages", "state", "here"), forms)]
    parts.append(GUIDES)
    for topic, rows in TOPICS.items():
        parts.append(f"### {topic}\n\n" + _table(("printed", "in", "state", "here", "test"), map(_printed, rows)))
    for program, by_age in FLAGS.items():
        parts.append(f"## {program}\n\n" + _table(("flag", "ages", "state", "here"), _flags(program, by_age)))
    parts.append("## Variables\n\n" + _table(("variable", "state", "here"), _variables()))
    routes = [(_code(f"{method} {path}"), *rest) for method, path, *rest in ROUTES]
    parts.append("## HTTP\n\n" + _table(("endpoint", "ages", "state", "here"), routes))
    parts.append("## Endpoints of workers\n\n" + _table(("endpoint", "ages", "state", "here"), OF_WORKERS))
    head = ("name", "ages", "state", "here")
    parts.append("## Python: dynamo.runtime\n\n" + _table(head, runtime_names.rows()))
    calls = [(_code(call), *rest) for call, *rest in python_llm.FORMS]
    names = [(_code(name), *rest) for name, *rest in python_llm.rows()]
    about = (
        f"{python_llm.ABOUT}\n\n"
        + _table(("call", "ages", "state", "here"), calls)
        + "\n"
        + _table(("name", "ages", "state", "here"), names)
    )
    parts.append(f"## Python: {python_llm.MODULE}\n\n" + about)
    parts.append(f"## Python: {core_names.MODULE}\n\n{core_names.ABOUT}\n\n" + _table(head, core_names.rows()))
    return "\n".join(parts)


def _printed(row: Row) -> tuple[str, ...]:
    return (_code(row.what) if row.is_line else row.what, ", ".join(row.pages), *row_state(row), _code(row.test))


def _flags(program: str, ages: dict[str, str]) -> Iterable[tuple[str, ...]]:
    flags_of_ages = sorted((flag, age) for age, flags in ages.items() for flag in flags.split())
    for flag, age in flags_of_ages:
        yield (_code(flag), age, *flag_state(program, flag))


def _variables() -> Iterable[tuple[str, ...]]:
    of_flags = {name for former in _formers() for name in former.env.split(", ") if name and "*" not in name}
    for name in sorted({*NAMES.split(), *of_flags}):
        yield (_code(name), *variable_state(name))


def _code(text: str) -> str:
    return f"`{text}`"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main() -> None:
    """Write the file that is named."""
    Path(sys.argv[1]).write_text(render())


if __name__ == "__main__":
    main()
