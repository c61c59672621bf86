"""Looks into the Python files of engine `python` before a worker runs them: whether they are there, and can be read."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.machine import ProgramFact

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

MOST_BYTES: Final = 1 << 20
"""Of a file that is looked into; a larger one is left to the worker."""


def programs(pipelines: Sequence[DynamoPipeline], folder: Path) -> tuple[ProgramFact, ...]:
    """Return what is wrong with the files that pipelines name, looked for from `folder`. Nothing of them is run."""
    named = [
        (component, pipeline.name)
        for pipeline in pipelines
        for component in pipeline.spec.components
        if component.python is not None and component.python.config_map is None
    ]
    facts = []
    for component, name in named:
        assert component.python is not None
        path = folder / component.python.file
        facts.append(ProgramFact(str(path), f"{component.name} of {name}", _problem(path)))
    return tuple(facts)


def _problem(path: Path) -> str:
    from dynamo.worker.engines.python.loading import GENERATE

    try:
        if path.exists() and not path.is_file():
            return "it is no file"
        if path.stat().st_size > MOST_BYTES:
            return ""
        tree = ast.parse(path.read_bytes())
    except OSError as error:
        return error.strerror or str(error)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or "it is nested too deeply"
    defined = any(_may_define(statement, GENERATE) for statement in tree.body)
    return "" if defined else f"it defines no async def {GENERATE}(request)"


def _may_define(statement: ast.stmt, name: str) -> bool:
    """Tell whether a statement of a file may bind a name; one that holds others (`if`, `try`, …) may."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return statement.name == name
        case ast.Import() | ast.ImportFrom():
            return any(alias.asname == name or alias.name in (name, "*") for alias in statement.names)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
        case _:
            return not isinstance(statement, ast.Expr | ast.Pass | ast.Delete)
