"""The states of NVIDIA Dynamo's words here: `pages.py` writes them down.

The state of a flag, a form, a line or a variable is asked of the code; a name without a state is a `LookupError`, and
so fails the test.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import click
from docs.generate.compatibility.printed_row import TO_THE_ENGINE, Row
from docs.generate.compatibility.variables import STATES
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
    for former in former_flags():
        if name in former.env.split(", "):
            return "not read", _remark(former)
    raise LookupError(f"{name} has no state: add it to variables.py")


def _fields_of(name: str) -> Iterable[str]:
    for kind in (*(program.settings for program in PROGRAMS.values()), WorkerSettings):
        for option in settings_in(kind):
            env = option.field.metadata["env"] or ()
            if name in ((env,) if isinstance(env, str) else env):
                yield option.name.replace("_", "-")


def former_flags() -> Iterable[LegacyFlag]:
    for program in PROGRAMS.values():
        yield from program.former


def own_default(program: str, flag: str) -> str:
    """Return the default that a flag has here; empty where it has none."""
    own = (option for option in options(PROGRAMS[program].settings) if isinstance(option, click.Option))
    return next((f"{option.default}" for option in own if flag in (*option.opts, *option.secondary_opts)), "")


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
