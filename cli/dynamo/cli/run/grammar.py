"""The words of `dynamo-run [in=X] [out=Y] [MODEL] [flags]`: who asks and who answers.

Pure: `dynamo.cli.run.main` gives it the arguments and the few facts it needs (is standard
input a terminal, is llama.cpp installed) and gets roles back, or a `CommandError` whose
sentence says what to type instead. Only the first two words may be `in=` and `out=`,
as in NVIDIA Dynamo; the rest belongs to the flag parser.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dynamo.engine_catalog import CATALOG, EngineName, traits_of
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.names import EndpointPath
from dynamo.runtime.process.extras import install_hint

ENGINES: Final = tuple(engine.value for engine in CATALOG if engine not in (EngineName.PYTHON, EngineName.OPENAI))
"""Names for `out=`; a Python file and a server have words of their own."""
OPENAI: Final = EngineName.OPENAI.value
USAGE: Final = (
    "dynamo-run [in=text|stdin|http|grpc|batch:FILE|dyn://NAMESPACE.COMPONENT.ENDPOINT|none] "
    f"[out={'|'.join(ENGINES)}|openai:URL|pystr:FILE|pytok:FILE|dyn] [MODEL] [flags]"
)
DYN: Final = "dyn"
WORKER: Final = "worker"
BATCH: Final = "batch"
NONE: Final = "none"
"""Nobody asks: `in=none`, or `in=none:dyn://N.C.E` where the leader serves something else than the default."""
DEFAULTS: Final = (EngineName.LLAMACPP.value, EngineName.MISTRALRS.value)
"""The engines that are taken where `out=` is left out, in this order; the first reads only GGUF files."""
_ALIASES: Final = {"echo": "echo_full", "llama_cpp": "llamacpp", "auto": DYN}
_INPUTS: Final = ("text", "stdin", "http", "grpc")
_SIDE: Final = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)
_DEFAULT_PATH: Final = EndpointPath("NS", "C", "E")


class CommandError(ValueError):
    """The command line can't be followed; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Words:
    """An argument list taken apart, before anything is judged."""

    input: str | None = None
    output: str | None = None
    verbosity: int = 0
    flags: tuple[str, ...] = ()
    """What the flag parser gets: flags and the model."""
    engine_arguments: tuple[str, ...] = ()
    """What stood behind `--`."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles: who asks and who answers."""

    input: str
    """`text`, `stdin`, `http`, `grpc`, `batch`, or `worker` (requests come from other processes)."""
    output: str
    """An engine's name, `python`, or `dyn` (other processes answer)."""
    path: EndpointPath | None = None
    """What a worker serves, or the only endpoint that a `dyn` frontend uses."""
    python_file: str = ""
    python_mode: str = ""
    python_arguments: tuple[str, ...] = ()
    server_url: str = ""
    """Of the server that engine `openai` asks."""
    batch_file: str = ""
    follower: bool = False
    """A worker that takes no requests: a node of a group beside its leader."""

    @property
    def process_local(self) -> bool:
        """Tell whether neither side is elsewhere: no etcd, no NATS."""
        return self.input != WORKER and self.output != DYN


def split(argv: Sequence[str]) -> Words:
    """Take `argv` (without the program's name) apart."""
    own, engine_arguments = _cut(argv)
    verbosity, words = _verbosity(own)
    sides: dict[str, str] = {}
    while words and len(sides) < 2 and (side := _SIDE.fullmatch(words[0])):
        name, value = side.groups()
        if name not in ("in", "out"):
            raise CommandError(f"Invalid argument {words[0]!r}: it must start with 'in=' or 'out='. Usage: {USAGE}")
        if name in sides:
            raise CommandError(f"{name}= is given twice; usage: {USAGE}")
        sides[name] = value
        words = words[1:]
    _refuse_late_sides(words)
    return Words(sides.get("in"), sides.get("out"), verbosity, tuple(words), tuple(engine_arguments))


def _cut(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _verbosity(words: list[str]) -> tuple[int, list[str]]:
    """Count `-v` (debug) and `-vv` (trace), wherever they stand; returns the other words, too."""
    counts = [len(word) - 1 for word in words if re.fullmatch("-v+", word)]
    if sum(counts) > 2:
        raise CommandError("too many -v: valid values are -v (debug) and -vv (trace)")
    return sum(counts), [word for word in words if not re.fullmatch("-v+", word)]


def _refuse_late_sides(words: list[str]) -> None:
    for word in words:
        if word.startswith(("in=", "out=")):
            raise CommandError(f"Put {word!r} before the model and the flags. Usage: {USAGE}")


def decide(words: Words, *, model: str, terminal: bool, installed: Collection[str]) -> Roles:
    """Say who asks and who answers; `terminal`: standard input is one; `installed`: which of `DEFAULTS` can run."""
    asker, serves = _input(words.input, terminal)
    file = _batch_file(words.input) if asker == BATCH else ""
    follower = (words.input or "").split(":")[0] == NONE
    output = words.output if words.output is not None else _default_output(model, installed)
    if output.startswith(("pystr:", "pytok:")):
        return replace(_python(asker, serves, output, words.engine_arguments), batch_file=file)
    if output.startswith(OPENAI):
        return replace(_server(asker, serves, output), batch_file=file)
    engine, uses = _output(output)
    if asker == WORKER and engine == DYN:
        raise CommandError(f"in={words.input} is a worker and needs an engine: give out=ENGINE, not out=dyn")
    return Roles(asker, engine, serves or uses, batch_file=file, follower=follower)


def _input(word: str | None, terminal: bool) -> tuple[str, EndpointPath | None]:
    if word is None:
        return ("text" if terminal else "stdin"), None
    if word == DYN or word.startswith("dyn://"):
        return WORKER, read_path("" if word == DYN else word)
    if word.split(":")[0] == NONE:
        path = word.removeprefix(NONE).removeprefix(":")
        return WORKER, read_path(path) if path else None
    kind = word.split(":")[0]
    if kind == BATCH:
        return BATCH, None
    if word not in _INPUTS:
        raise CommandError(f"Invalid in= option {word!r}{_meant(word, [*_INPUTS, 'batch:', NONE, 'dyn://'])}")
    return word, None


def _batch_file(word: str | None) -> str:
    file = (word or "").removeprefix(BATCH).removeprefix(":")
    if not file:
        raise CommandError("in=batch needs a file: in=batch:PROMPTS.jsonl")
    return file


def _output(word: str) -> tuple[str, EndpointPath | None]:
    if word.startswith("dyn://"):
        return DYN, read_path(word)
    name = _ALIASES.get(word, word)
    if name != DYN and name not in ENGINES:
        raise CommandError(f"Invalid out= option {word!r}{_meant(word, [*ENGINES, OPENAI, DYN])}")
    return name, None


def _server(asker: str, serves: EndpointPath | None, word: str) -> Roles:
    kind, _, url = word.partition(":")
    if kind != OPENAI or not url.startswith(("http://", "https://")):
        raise CommandError(f"out={word} needs the address of a server: out=openai:http://HOST:PORT/v1")
    return Roles(asker, OPENAI, serves, server_url=url)


def _python(asker: str, serves: EndpointPath | None, word: str, arguments: tuple[str, ...]) -> Roles:
    kind, _, file = word.partition(":")
    if not file:
        raise CommandError(f"out={word} needs a file: out={kind}:ENGINE.py")
    return Roles(asker, "python", serves, file, "text" if kind == "pystr" else "tokens", arguments)


def _default_output(model: str, installed: Collection[str]) -> str:
    if not model:
        return "echo_full"
    of_gguf = model.lower().endswith(".gguf") or model.startswith("package://")
    engine = next((name for name in (DEFAULTS if of_gguf else DEFAULTS[1:]) if name in installed), "")
    if engine:
        return engine
    wanted = DEFAULTS[0 if of_gguf else 1]
    extra = traits_of(wanted).extra
    raise CommandError(
        f"{model} is served by {wanted} where out= is left out: {install_hint(extra)}, or say which "
        "engine answers (out=echo_core and out=mocker need only its tokenizer)"
    )


def read_path(text: str) -> EndpointPath:
    """Read an endpoint, generously: missing parts are `NS`, `C` and `E`, surplus ones join the endpoint's name."""
    bare = text.removeprefix("dyn://")
    parts = [part for part in re.split(r"[./]", bare.strip(" /.")) if part]
    if len(parts) == 1:
        parts = [_DEFAULT_PATH.namespace, parts[0]]
    full: list[str] = [*parts, *list(_DEFAULT_PATH)[len(parts) :]]
    namespace, component, *names = full
    try:
        return EndpointPath.parse(f"{namespace}.{component}.{'_'.join(names)}")
    except InvalidArgument as error:
        raise CommandError(f"dyn://{bare}: {error}") from error


def _meant(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]!r}" if close else f"; known are {', '.join(known)}"
