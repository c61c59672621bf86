"""Runs a user's file as a script is run, and judges what it defines.

As in NVIDIA Dynamo: `__name__` is `"__main__"`, the file's folder is on the import path, `sys.argv` holds its own
arguments. `load` blocks as long as the file's top level does (a model may be loaded there): call it in a thread.
Long work at the start is done in a thread where it blocks (`InThread`), and told of while it lasts (`patiently`)."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import functools
import inspect
import json
import logging
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeVar

from dynamo.llm.serving.handler_io import Mistake, kind_of
from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.request_plane.generator_handler import Wants, call, wanted_context
from dynamo.worker.engines.python.tracebacks import Home, explained
from dynamo.worker.settings import WorkerSettings

GENERATE: Final = "generate"
INITIALIZE: Final = "initialize"
ROUTES: Final = "engine_routes"
_FORM: Final = "write 'async def generate(request):' and yield each piece"


@dataclass(frozen=True)
class UserFile:
    """A loaded file."""

    home: Home
    generate: Callable[..., Any]
    wants: Wants
    """How `generate` takes the request's context."""
    initialize: Callable[..., Any] | None
    routes: dict[str, Callable[..., Any]]
    """By name, what answers `POST /engine/<name>`."""
    replaced: Replaced

    def open(self, request: Any, context: Context) -> AsyncIterator[Any]:
        """Open the answer to one request, not begun; `Mistake` where it is nothing that can be iterated."""
        output = call(self.generate, self.wants, request, context)
        if isinstance(output, AsyncIterator):
            return output
        if inspect.iscoroutine(output):
            output.close()
        raise Mistake(f"{self.home.file.name}: generate returned {kind_of(output)}, no async generator: {_FORM}")


class Replaced:
    """State that a script owns in its process; `restore` gives it back to ours."""

    def __init__(self, module: ModuleType, argv: Sequence[str], folder: str) -> None:
        self._main, self._argv, self._folder = sys.modules.get("__main__"), sys.argv, folder
        self._added = folder not in sys.path
        if self._added:
            sys.path.insert(0, folder)
        sys.argv = list(argv)
        sys.modules["__main__"] = module

    def restore(self) -> None:
        sys.argv = self._argv
        if self._main is not None:
            sys.modules["__main__"] = self._main
        if self._added and self._folder in sys.path:
            sys.path.remove(self._folder)


def load(file: Path, arguments: Sequence[str]) -> UserFile:
    """Run the file; `InvalidArgument` says in one sentence what is wrong with it, by its lines."""
    home = Home(file)
    code = _compiled(home)
    module = ModuleType("__main__")
    module.__file__ = str(file)
    replaced = Replaced(module, [file.name, *arguments], str(file.parent))
    try:
        exec(code, module.__dict__)
        generate, initialize = _generate(module, home), _initialize(module, home)
        return UserFile(home, generate, wanted(generate), initialize, _routes(module, home), replaced)
    except SystemExit as error:
        replaced.restore()
        raise InvalidArgument(_ended(error, home)) from error
    except Exception as error:
        replaced.restore()
        raise InvalidArgument(explained(error, home)) from error


def _compiled(home: Home) -> Any:
    try:
        return compile(home.file.read_bytes(), str(home.file), "exec", dont_inherit=True)
    except OSError as error:
        raise InvalidArgument(f"--python-file {home.file}: {error.strerror or error}") from error
    except (SyntaxError, ValueError) as error:
        raise InvalidArgument(explained(error, home)) from error


def _ended(error: SystemExit, home: Home) -> str:
    place = home.raised(error.__traceback__) or home.file.name
    message = f"{place}: the file ended the process (exit {error.code}) instead of defining generate"
    if isinstance(error.__context__, argparse.ArgumentError) or "argparse" in _modules(error):
        message += "; its argv may have --model-path and --model-name before its own words: use parse_known_args()"
    return message


def _modules(error: BaseException) -> set[str]:
    modules, trace = set(), error.__traceback__
    while trace is not None:
        modules.add(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return modules


def _generate(module: ModuleType, home: Home) -> Callable[..., Any]:
    function = getattr(module, GENERATE, None)
    if function is None:
        near = difflib.get_close_matches(GENERATE, vars(module), n=1)
        hint = f"; is {near[0]!r} meant?" if near else ""
        raise Mistake(f"{home.file.name} defines no generate: {_FORM}{hint}")
    if problem := generate_problem(function):
        raise Mistake(f"{_defined(function, home)}: {problem}")
    generate: Callable[..., Any] = function
    return generate


def generate_problem(function: object) -> str:
    """Say what is wrong with what a file calls `generate`; empty where it can be called for each request."""
    if not callable(function):
        return f"generate is {kind_of(function)}: {_FORM}"
    if isinstance(function, type):
        return f"generate is a class: {_FORM}, or 'generate = {function.__name__}().generate'"
    inner = _inner(function)
    if inspect.isasyncgenfunction(inner):
        return _signature_problem(function)
    if inspect.iscoroutinefunction(inner):
        return "generate is async but yields nothing: yield each piece of the answer instead of returning it"
    if inspect.isgeneratorfunction(inner):
        return "generate is a plain generator, which would hold up all other requests: write 'async def generate'"
    if isinstance(inner, FunctionType):
        return f"generate is a plain function: {_FORM}"
    return _signature_problem(function)  # callables of other kinds show what they return at the first request


def _inner(function: Any) -> Any:
    """Return the function behind decorators, partials and callable objects."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not isinstance(function, (FunctionType, MethodType)):
        call = vars(type(function)).get("__call__")
        return call if isinstance(call, FunctionType) else function
    return function.__func__ if isinstance(function, MethodType) else function


def _signature_problem(function: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        call(signature.bind, wanted(function), None, Context())
    except TypeError:
        return f"generate takes {signature}: it is called with (request), or with (request, context)"
    return ""


def wanted(function: Callable[..., Any]) -> Wants:
    """Return how a function takes its context.

    `*args` alone takes the request: a file that was written for that stays as it is.
    """
    return wanted_context(function, starred=False)


def _defined(function: Any, home: Home) -> str:
    code = getattr(_inner(function), "__code__", None) if callable(function) else None
    if code is None or not home.owns(code.co_filename):
        return home.file.name
    return str(home.at(code.co_filename, code.co_firstlineno))


def _initialize(module: ModuleType, home: Home) -> Callable[..., Any] | None:
    function = getattr(module, INITIALIZE, None)
    if function is None:
        return None
    inner = _inner(function) if callable(function) else function
    if not callable(function) or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise Mistake(f"{_defined(function, home)}: initialize must be 'async def initialize(args):' and yield nothing")
    initialize: Callable[..., Any] = function
    return initialize


def _routes(module: ModuleType, home: Home) -> dict[str, Callable[..., Any]]:
    routes = getattr(module, ROUTES, None)
    if routes is None or isinstance(routes, ModuleType):
        return {}
    if not isinstance(routes, dict) or not all(isinstance(k, str) and callable(v) for k, v in routes.items()):
        raise Mistake(f"{home.file.name}: {ROUTES} must be a dict of names and functions, such as {{'sleep': sleep}}")
    return dict(routes)


def takes_arguments(initialize: Callable[..., Any]) -> bool:
    """Tell whether `initialize` wants the arguments; NVIDIA Dynamo passes them."""
    try:
        return bool(inspect.signature(initialize).parameters)
    except (TypeError, ValueError):
        return True


_FLAG: Final = re.compile(r"[A-Za-z0-9][\w.-]*")


def file_arguments(settings: WorkerSettings, model_path: str) -> list[str]:
    """Return what stands behind the file's name in its `sys.argv`.

    What was said of the model, as NVIDIA Dynamo passes it on, then the file's own words, then those of
    `--engine-args`.
    """
    plain = {
        "--model-path": model_path,
        "--model-name": settings.model_name,
        "--tensor-parallel-size": settings.tensor_parallel_size if settings.tensor_parallel_size > 1 else "",
    }
    words = [word for flag, value in plain.items() if value for word in (flag, str(value))]
    return [*words, *settings.python_arg, *_flags(settings.arguments())]


def _flags(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield `{"n": 1, "yes": true, "tags": ["a", "b"]}` as `-n 1 --yes --tags a b`."""
    for name, value in arguments.items():
        if not _FLAG.fullmatch(name):
            raise InvalidArgument(f"--engine-args: {name!r} can't be made a flag of the file: give it letters and '-'")
        if value is None or value is False:
            continue
        yield f"-{name}" if len(name) == 1 else f"--{name}"
        if isinstance(value, list):
            yield from map(_word, value)
        elif value is not True:
            yield _word(value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


log = logging.getLogger(__name__)
EVERY: Final = 10.0
T = TypeVar("T")


class InThread:
    """Runs something long in a thread, and shows where that is."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._thread: int | None = None

    async def run(self) -> Any:
        return await asyncio.to_thread(self._begin)

    def _begin(self) -> Any:
        self._thread = threading.get_ident()
        try:
            return self._work()
        finally:
            self._thread = None

    def frame(self) -> FrameType | None:
        return sys._current_frames().get(self._thread) if self._thread is not None else None


async def patiently(work: Awaitable[T], still: Callable[[], str]) -> T:
    """Return the result of `work`; says every `EVERY` seconds that it is not there yet."""
    task, waited = asyncio.ensure_future(work), 0.0
    try:
        while not (await asyncio.wait([task], timeout=EVERY))[0]:
            waited += EVERY
            log.info("%s (%.0f s)", still(), waited)
        return task.result()
    finally:
        task.cancel()
