"""The pages of docs/reference/ are what `make generate` writes, and nothing is missing in them."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import pytest
from docs.generate.api import errors_page, http_examples, http_headers, http_page
from docs.generate.api.error_codes import CODES
from docs.generate.cluster import pipeline_page
from docs.generate.cluster.pipeline_examples import EXAMPLES, SINCE
from docs.generate.references import PAGES
from pydantic import BaseModel, TypeAdapter

from dynamo.cli.run.settings import RunSettings
from dynamo.frontend import errors
from dynamo.frontend.settings import FrontendSettings
from dynamo.operator.api import conditions, reasons
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.runtime.errors import DynamoException
from dynamo.runtime.process.settings import flag, settings_in
from dynamo.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OF_OTHERS = {"--replicas"}
"""Flags of programs that aren't ours, which the pages name."""
PIECE = re.compile("…|; (?=try again in a moment)|(?<=is) (?=over its busy)")
"""What parts a message: values, and the sentence that every refusal ends with."""
CODE_AT = {"bad_request": 2, "unavailable": 1, "overloaded": 1, "_refusal": 0, "_full": 1, "_format": 1}
"""Where the functions that make errors take their code."""


@pytest.mark.parametrize("name", PAGES)
def test_pages_follow_the_code(name: str) -> None:
    """Each page is what `make generate` writes, in lines that can be read."""
    text = PAGES[name]()
    assert (ROOT / "docs/reference" / name).read_text() == text, "run `make generate`"
    prose = [line for line in FENCE.sub("", text).splitlines() if not line.startswith("|")]
    assert [line for line in prose if len(line) > 120] == []


def test_every_field_of_a_pipeline_has_an_example() -> None:
    """Each field has an example and no other path does."""
    paths = [field.path for field in pipeline_page.fields()]
    assert sorted(EXAMPLES) == sorted(paths)
    assert set(SINCE) <= set(paths)


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_are_read_by_the_fields(path: str) -> None:
    """The type of a field takes its example."""
    model: Any = DynamoPipeline
    *outer, last = path.replace("[]", "").split(".")
    for name in outer:
        model = _model_in(_field(model, name).annotation)
    field = _field(model, last)
    kind: Any = field.annotation
    for rule in field.metadata:
        kind = cast("Any", Annotated)[kind, rule]
    TypeAdapter(kind).validate_json(json.dumps(EXAMPLES[path]))


def _field(model: type[BaseModel], name: str) -> Any:
    return next(field for key, field in model.model_fields.items() if name in (field.alias, key))


def _model_in(kind: Any) -> type[BaseModel]:
    """Find the model in an optional or a tuple of it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(model for inner in get_args(kind) if (model := _model_or_none(inner)) is not None)


def _model_or_none(kind: Any) -> type[BaseModel] | None:
    try:
        return _model_in(kind)
    except StopIteration:
        return None


def test_every_condition_and_reason_has_a_meaning() -> None:
    """No condition or reason of the operator is missing in the reference."""
    assert set(conditions.TYPES) == set(conditions.Type)
    assert set(reasons.REASONS) == set(conditions.Reason)
    assert {meaning.ready for meaning in reasons.REASONS.values()} <= {"True", "False"}


def test_every_error_code_is_explained() -> None:
    """The codes that the frontend's code names, and those of the runtime's errors, are those of the reference."""
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "frontend/dynamo/frontend").rglob("*.py"))]
    constants = {name: value for tree in trees for name, value in _constants(tree)}
    named = {code for tree in trees for code in _codes(tree, constants)}
    raised = {row.code or kind.code for kind, row in errors._TABLE.items()} | {DynamoException.code}
    assert sorted(named | raised | {"invalid_value"}) == sorted(CODES)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text))):
                yield name, text


def _codes(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            given = [word.value for word in node.keywords if word.arg == "code"]
            at = CODE_AT.get(name, len(node.args))
            for value in (*given, *node.args[at : at + 1]):
                yield from _texts(value, constants)


def _texts(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from (*_texts(node.body, constants), *_texts(node.orelse, constants))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in constants:
        yield constants[node.id]


def test_messages_are_those_of_the_code() -> None:
    """Each piece of a message between two … stands in the frontend's code."""
    source = "\n".join(path.read_text() for path in sorted((ROOT / "frontend/dynamo/frontend").rglob("*.py")))
    plain = re.sub(r'"\s*f?"', "", source).lower()
    pieces = [(code, piece) for code, error in CODES.items() for piece in PIECE.split(error.message.lower())]
    assert [(code, piece) for code, piece in pieces if piece.strip() not in plain] == []


def test_flags_that_the_references_name_exist() -> None:
    """A flag in a remedy or a header's meaning is a flag of a program."""
    programs = (FrontendSettings, WorkerSettings, RunSettings)
    known = {flag(option.name) for program in programs for option in settings_in(program)}
    texts = "\n".join([errors_page.render(), http_page.HEAD, *(header.text for header in http_headers.REQUESTS)])
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", texts)) - OF_OTHERS
    assert sorted(name for name in named if name not in known and name.replace("--no-", "--") not in known) == []


def test_headers_are_read_or_written() -> None:
    """The frontend's code names each header of the reference."""
    folders = ("frontend/dynamo/frontend", "sdk/dynamo/runtime")
    source = "\n".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    headers = [name for header in (*http_headers.REQUESTS, *http_headers.ANSWERS) for name in header.names]
    assert [name for name in headers if f'"{name}"' not in source] == []


def test_examples_belong_to_routes() -> None:
    """Each example of the HTTP reference is of a route that is served."""
    routes = {
        f"{method.upper()} {path}" for path, methods in http_page.openapi()["paths"].items() for method in methods
    }
    assert set(http_examples.EXAMPLES) <= routes
