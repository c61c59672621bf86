"""`dynamo-run`: one model, one line. Reads the command line and starts what it names.

The grammar is in `grammar.py`, the flags in `settings.py`; `session.py` puts the
frontend and the worker together in this process. Nothing heavy is imported before the
line is understood, so that `--help` and mistakes answer at once.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import click

from dynamo.cli.ctrl_c import interrupt_on_ctrl_c, leave_on_ctrl_c
from dynamo.cli.help_text import folded
from dynamo.cli.run.grammar import DEFAULTS, ENGINES, CommandError, Words, decide, split
from dynamo.cli.run.legacy_flags import FORMER, GROUPS
from dynamo.cli.run.settings import Run, RunSettings, check, notices, request_defaults
from dynamo.engine_catalog import traits_of
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.process import settings as flags
from dynamo.runtime.process.extras import install_hint
from dynamo.runtime.process.legacy_flags import FlagCommand
from dynamo.runtime.process.settings import installed_version

_ENGINE_LINES: Final = "\n".join(f"  {name:12} {traits_of(name).title}" for name in ENGINES)
HELP: Final = f"""Chat with a model, serve it over HTTP, or make it a worker of a larger system.

The words in= and out= come first, and either may be left out. Where neither is dyn, everything happens in this
process: no etcd, no NATS.

\b
in=, who asks:
  text         a chat in this terminal (default on a terminal)
  stdin        one prompt from a pipe, the answer on standard output (default otherwise)
  http         an OpenAI-compatible server
  grpc         KServe's protocol over gRPC, and that server on --grpc-metrics-port
  batch:FILE   each line of a JSON Lines file: {{"text": PROMPT}}, or OpenAI's batch lines
  dyn://N.C.E  other processes, over etcd and NATS: this one is a worker
  none         nobody: a node beside the leader of an engine that runs over several

\b
out=, who answers:
{_ENGINE_LINES}
  openai:URL   an OpenAI-compatible server that runs already: openai:http://localhost:11434/v1
  pystr:FILE, pytok:FILE  a Python file of yours, with text or with tokens; its arguments stand behind --
  dyn          workers found in etcd (also: auto, dyn://N.C.E)

\b
MODEL, what is served:
  FILE.gguf                a GGUF file
  FOLDER                   a checkout of Hugging Face: config.json, tokenizer, safetensors
  ORG/REPO[@REVISION]      one of Hugging Face, loaded into its cache
  ORG/REPO:Q4_K_M, ORG/REPO/FILE.gguf  a GGUF file of Hugging Face, likewise
  package://NAME           a GGUF file that a Python package carries
  left out                 echoes and the mocker need none
"""
EPILOG: Final = """\b
Examples:
  dynamo-run model.gguf                                chat
  echo hi | dynamo-run out=echo_full                   one answer
  dynamo-run in=http out=mocker --http-port 0          a server on a free port
  dynamo-run in=batch:prompts.jsonl model.gguf         answers in output.jsonl; again after a crash: goes on
  dynamo-run in=dyn://ns.backend.generate model.gguf   a worker ...
  dynamo-run in=http out=dyn                           ... and its frontend

\b
Variables: a flag goes before its variable, that before the default.
  ETCD_ENDPOINTS, NATS_SERVER     connections (only with dyn)
  DYN_LOG                         what is logged: info, warn,dynamo.runtime=debug; -v is debug, -vv trace
  DYN_TOKEN_ECHO_DELAY_MS         pause of the echo engines between tokens (10)
  HF_TOKEN, HF_HOME               models from Hugging Face
  DYN_CONSOLE=1                   `dynamo tasks` shows what each task waits for

\b
Exit codes: 0, 1 failed (in=batch: also where a line failed), 2 usage, 130 interrupted.
Flags of 2025 and 2026 are understood: docs/reference/compatibility/index.md.
"""


class RunCommand(FlagCommand):
    """Shows in= and out=, which another parser reads, where they are typed."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        sides = [] if "=" in (ctx.info_name or "") else ["[in=WHO-ASKS]", "[out=WHO-ANSWERS]"]
        return [*sides, "[MODEL]", "[FLAGS]"]


def command() -> FlagCommand:
    """Make the flag parser, also for docs/reference/cli.md."""
    more = click.Option(["-v"], count=True, expose_value=False, help="More log lines; -vv for all of them.")
    return RunCommand(
        "dynamo-run",
        params=[
            click.Argument(["model"], required=False, default=""), *flags.options(RunSettings), more,
            flags.version_option(),
        ],
        callback=_collect, help=folded(HELP), epilog=folded(EPILOG), former=FORMER, groups=GROUPS,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )  # fmt: skip


def _collect(model: str, **values: Any) -> tuple[str, RunSettings]:
    return model, RunSettings(**values)


def read(
    argv: Sequence[str], *, terminal: bool, installed: Collection[str], look: Callable[[str], None] = lambda model: None
) -> Run:
    """Understand `argv`; raises `CommandError`, or click's own errors and `click.exceptions.Exit` after help.

    `look` raises where there is no such model. It is asked before an engine is chosen by the model's name: who
    misspells a model is not helped by the name of an engine.
    """
    words = split(argv)
    with command().make_context(f"dynamo-run {_sides(words)}".rstrip(), list(words.flags)) as context:
        positional, settings = context.command.invoke(context)
    if positional and settings.model_path and positional != settings.model_path:
        raise CommandError(f"two models are named, {positional} and --model-path {settings.model_path}: drop one")
    model = positional or settings.model_path
    if words.output is None:
        look(model)
    roles = decide(words, model=model, terminal=terminal, installed=installed)
    check(roles, settings, model)
    if words.engine_arguments and roles.output != "python":
        raise CommandError("arguments after -- go to out=pystr: and out=pytok: engines only")
    return Run(words, roles, settings, model, request_defaults(settings))


def _refuse_unknown(model: str) -> None:
    """Raise `InvalidArgument` where a model is neither here nor named as the hub or a package names one."""
    from dynamo.llm.models.paths import find_path, is_of_hub

    if model and not model.startswith("package://") and not is_of_hub(model):
        find_path(model)


def _sides(words: Words) -> str:
    sides = (f"in={words.input}" if words.input else "", f"out={words.output}" if words.output else "")
    return " ".join(filter(None, sides))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script."""
    leave_on_ctrl_c()
    if "_DYNAMO_RUN_COMPLETE" in os.environ:
        from dynamo.cli.run.completion import complete

        complete()
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Do what the line says; the exit code: 0, 1 failed, 2 usage, 130 interrupted."""
    if {"-V", "--version"} & set(argv[: argv.index("--") if "--" in argv else None]):
        print(installed_version())
        return 0
    try:
        understood = read(
            ["--help"] if not argv or {"-h", "--help"} & set(argv) else argv,
            terminal=sys.stdin.isatty(),
            installed=[name for name in DEFAULTS if importlib.util.find_spec(traits_of(name).package)],
            look=_refuse_unknown,
        )
    except click.exceptions.Exit as leaving:
        if not argv:
            from dynamo.cli.run.offer import offer

            print("\n".join(offer()))
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (CommandError, InvalidArgument) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, CommandError) else 1
    return _start(understood)


def _start(understood: Run) -> int:
    try:
        from dynamo.cli.run import session
    except ModuleNotFoundError as error:  # installed without what it composes
        return _incomplete(error)
    interrupt_on_ctrl_c()
    for sentence in notices(understood.roles, understood.settings, understood.model):
        print(f"note: {sentence}", file=sys.stderr)
    try:
        return session.start(understood)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # who read the answer has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dynamo"):
            raise  # ours, and so our mistake
        return _incomplete(error)
    except session.USER_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        if understood.words.verbosity > 1:
            raise
        return 1


def _incomplete(error: ModuleNotFoundError) -> int:
    print(f"error: {error.name} is not installed: {install_hint('cli')}", file=sys.stderr)
    return 1
