"""Runs a user's file as a script is run, and judges what it defines.

As the original does: `__name__` is `"__main__"`, the file's folder is on the import path, `sys.argv` holds its own
arguments. `load` blocks as long as the file's top level does (a model may be loaded there): call it in a thread.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from dynamo.llm.handlers.outputs import Mistake, kind_of
from dynamo.runtime.context import Context
from dynamo.runtime.errors import InvalidArgument
from dynamo.runtime.generators import Wants, call, wanted_context
from dynamo.worker.engines.userfile.mistakes import Home, explained

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
        """The answer to one request, not begun; `Mistake` where it is nothing that can be iterated."""
        output = call(self.generate, self.wants, request, context)
        if isinstance(output, AsyncIterator):
            return output
        if inspect.iscoroutine(output):
            output.close()
        raise Mistake(f"{self.home.file.name}: generate returned {kind_of(output)}, no async generator: {_FORM}")


class Replaced:
    """What a script owns in its process; `restore` gives it back to ours."""

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
    found = f"{place}: the file ended the process (exit {error.code}) instead of defining generate"
    if isinstance(error.__context__, argparse.ArgumentError) or "argparse" in _modules(error):
        found += "; its argv may have --model-path and --model-name before its own words: use parse_known_args()"
    return found


def _modules(error: BaseException) -> set[str]:
    found, trace = set(), error.__traceback__
    while trace is not None:
        found.add(str(trace.tb_frame.f_globals.get("__name__")))
        trace = trace.tb_next
    return found


def _generate(module: ModuleType, home: Home) -> Callable[..., Any]:
    found = getattr(module, GENERATE, None)
    if found is None:
        near = difflib.get_close_matches(GENERATE, vars(module), n=1)
        hint = f"; is {near[0]!r} meant?" if near else ""
        raise Mistake(f"{home.file.name} defines no generate: {_FORM}{hint}")
    if problem := generate_problem(found):
        raise Mistake(f"{_defined(found, home)}: {problem}")
    generate: Callable[..., Any] = found
    return generate


def generate_problem(found: object) -> str:
    """What is wrong with what a file calls `generate`; empty where it can be called for each request."""
    if not callable(found):
        return f"generate is {kind_of(found)}: {_FORM}"
    if isinstance(found, type):
        return f"generate is a class: {_FORM}, or 'generate = {found.__name__}().generate'"
    inner = _inner(found)
    if inspect.isasyncgenfunction(inner):
        return _signature_problem(found)
    if inspect.iscoroutinefunction(inner):
        return "generate is async but yields nothing: yield each piece of the answer instead of returning it"
    if inspect.isgeneratorfunction(inner):
        return "generate is a plain generator, which would hold up all other requests: write 'async def generate'"
    if isinstance(inner, FunctionType):
        return f"generate is a plain function: {_FORM}"
    return _signature_problem(found)  # callables of other kinds show what they return at the first request


def _inner(found: Any) -> Any:
    """The function behind decorators, partials and callable objects."""
    found = inspect.unwrap(found)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    if not isinstance(found, (FunctionType, MethodType)):
        call = vars(type(found)).get("__call__")
        return call if isinstance(call, FunctionType) else found
    return found.__func__ if isinstance(found, MethodType) else found


def _signature_problem(found: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    try:
        call(signature.bind, wanted(found), None, Context())
    except TypeError:
        return f"generate takes {signature}: it is called with (request), or with (request, context)"
    return ""


def wanted(found: Callable[..., Any]) -> Wants:
    """How it takes its context. `*args` alone takes the request: a file that was written for that stays as it is."""
    return wanted_context(found, starred=False)


def _defined(found: Any, home: Home) -> str:
    code = getattr(_inner(found), "__code__", None) if callable(found) else None
    if code is None or not home.owns(code.co_filename):
        return home.file.name
    return str(home.at(code.co_filename, code.co_firstlineno))


def _initialize(module: ModuleType, home: Home) -> Callable[..., Any] | None:
    found = getattr(module, INITIALIZE, None)
    if found is None:
        return None
    inner = _inner(found) if callable(found) else found
    if not callable(found) or inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        raise Mistake(f"{_defined(found, home)}: initialize must be 'async def initialize(args):' and yield nothing")
    initialize: Callable[..., Any] = found
    return initialize


def _routes(module: ModuleType, home: Home) -> dict[str, Callable[..., Any]]:
    found = getattr(module, ROUTES, None)
    if found is None or isinstance(found, ModuleType):
        return {}
    if not isinstance(found, dict) or not all(isinstance(k, str) and callable(v) for k, v in found.items()):
        raise Mistake(f"{home.file.name}: {ROUTES} must be a dict of names and functions, such as {{'sleep': sleep}}")
    return dict(found)


def takes_arguments(initialize: Callable[..., Any]) -> bool:
    """Whether `initialize` wants the arguments; the original gives them."""
    try:
        return bool(inspect.signature(initialize).parameters)
    except (TypeError, ValueError):
        return True
