"""What a refusal may say: of any data a sentence that names the field, and never longer than one reads."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.operator.pipelines import FULL, SMALLEST, body

from dynamo.operator.api import body as bodies
from dynamo.operator.api import validation_errors
from dynamo.operator.api.load import PipelineFileError, load_pipelines
from dynamo.operator.api.shown import (
    MESSAGE_CHARACTERS,
    PATH_CHARACTERS,
    TEXT_CHARACTERS,
    VALUE_CHARACTERS,
    shown,
    shown_path,
)
from dynamo.operator.api.v1alpha1 import DynamoPipeline
from dynamo.operator.manifests.context import RenderError

SCALARS = st.none() | st.booleans() | st.integers(-3, 10**30) | st.floats(allow_nan=False) | st.text(max_size=5)
KEYS = st.sampled_from(["int", "constrained-str", "str", "cpu", "name", "missing", "0"]) | st.text(max_size=3)
DATA = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=15
)
PLACES = st.lists(KEYS | st.integers(-2, 5), max_size=6).map(tuple)


@given(PLACES, DATA, st.booleans())
def test_any_location_is_walked_through_any_data(location: tuple[int | str, ...], data: Any, missing: bool) -> None:
    """pydantic names members of unions in a location, which no data has: what is left of it is in the data."""
    real = validation_errors._real(location, data, missing=missing)
    within = real[:-1] if missing and location else real
    assert not missing or not location or real[-1] == location[-1]
    inner = data
    for part in within:
        inner = inner[part]
    assert validation_errors._value(within, data) == inner
    validation_errors._value(location, data)


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in inner for place in _places(value, (*path, key)))]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(_places(FULL)[1:]), DATA)
def test_every_field_may_hold_anything(place: tuple[Any, ...], value: Any) -> None:
    """A reader gets sentences whose fields are of the file, whatever is in the place of one."""
    spec = json.loads(json.dumps(FULL))
    inner = spec
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    made = body(spec)
    try:
        DynamoPipeline.model_validate_json(json.dumps(made))
    except ValidationError as error:
        problems = validation_errors.explain(error, made, DynamoPipeline)
        assert all(problem.path.startswith(("spec", "metadata")) and problem.message for problem in problems)
        assert problems


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"a": 1}, "spec.frontend.resources.limits.cpu: must be a whole number, not a mapping"),
        ([1], "spec.frontend.resources.limits.cpu: must be a whole number, not a list"),
    ],
)
def test_a_mapping_in_the_place_of_an_amount(value: Any, sentence: str) -> None:
    """The field is named, not a member of its type's union."""
    spec = {**SMALLEST, "frontend": {"resources": {"limits": {"cpu": value}}}}
    (problem,) = bodies.read(body(spec)).problems
    assert problem == sentence


def test_a_value_is_quoted_whole_where_it_is_short() -> None:
    """As Python writes it; of a longer one its beginning."""
    for value in ("vlm", 5, 0.5, None, True, ["a", 1], {"b": 1}):
        assert shown(value) == repr(value)
    longer: list[Any] = ["x" * 10**6, ["x" * 10**6] * 99, {"x" * 10**6: 1}, 10**4000, 10**400, [[[["x" * 99]]]] * 99]
    assert max(len(shown(value)) for value in longer) <= VALUE_CHARACTERS
    assert shown(10**5000) == "a number of thousands of digits"


LONG = "x" * 900_000
MANY = {f"k{number}": "v" for number in range(2000)}
DOCUMENTS: dict[str, Callable[[], str]] = {
    "an engine": lambda: text(components=[{"engine": LONG}]),
    "engines that are mappings": lambda: text(components=[{"engine": MANY}] * 16),
    "an engine of many bytes": lambda: text(components=[{"engine": [[LONG]]}]),
    "a field": lambda: text(components=[{"engine": "mocker", LONG: 1}]),
    "many fields": lambda: text(components=[{"engine": "mocker", **{f"{n}{'y' * 9000}": 1 for n in range(99)}}]),
    "a field in a field": lambda: text(components=[{"engine": "mocker"}], frontend={LONG: {LONG[:90_000]: 1}}),
    "a name": lambda: text(components=[{"engine": "mocker", "name": LONG}]),
    "a number": lambda: text(components=[{"engine": "mocker", "replicas": 10**4000}]),
    "a number as text": lambda: text(components=[{"engine": "mocker", "replicas": "9" * 900_000}]),
    "a source": lambda: text(components=[{"engine": "mocker"}], model={"source": f"{LONG}://a"}),
    "an engine's argument": lambda: text(components=[{"engine": "mocker", "engineArgs": {f"{'-' * 900_000}model": 1}}]),
    "variables": lambda: text(components=[{"engine": "mocker", "env": [{"name": "X" * 256}] * 128}]),
    "an amount": lambda: text(
        components=[{"engine": "mocker", "podTemplate": {"spec": {"overhead": {LONG[:400_000]: LONG[:400_000]}}}}]
    ),
    "a pipeline": lambda: f"{text(components=[{'engine': 'mocker'}]).replace('llama', LONG[:200_000])}---\n" * 2,
    "a kind": lambda: f"apiVersion: v1\nkind: {LONG}\n",
    "kinds": lambda: "---\n".join(f"apiVersion: v1\nkind: {'K' * 500}{n}\n" for n in range(1500)),
    "a version": lambda: f"apiVersion: dynamo.dev/{LONG}\nkind: DynamoPipeline\n",
    "an anchor": lambda: f"a: *{LONG}\n",
    "a tag": lambda: f"a: !{LONG} b\n",
    "a boolean": lambda: f"a: !!bool {LONG}\n",
    "an integer": lambda: f"a: !!int {LONG}\n",
    "a key that is a list": lambda: f"? [{LONG}, {LONG[:9]}]\n: 1\n",
    "a key that is a number": lambda: f"{'9' * 900_000}: 1\n",
    "keys given twice": lambda: f"{LONG[:400_000]}: 1\n{LONG[:400_000]}: 1\n",
    "4 MB": lambda: LONG * 5,
}


def text(**spec: Any) -> str:
    return str(yaml.dump(body(spec), Dumper=yaml.CSafeDumper, width=1 << 30))


@functools.cache
def document(name: str) -> str:
    """One of them, made once."""
    return DOCUMENTS[name]()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_refusal_is_long(name: str) -> None:
    """Whatever is quoted of a file of megabytes, a line has a kilobyte at most, and all of them together some."""
    with pytest.raises(PipelineFileError) as refusal:
        load_pipelines(document(name), "f.yaml")
    lines = str(refusal.value).splitlines()
    assert max(map(len, lines)) <= PATH_CHARACTERS + MESSAGE_CHARACTERS + 50
    assert len(str(refusal.value)) <= TEXT_CHARACTERS + 200


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_status_is_long(name: str) -> None:
    """Of the same as an object of the API server."""
    try:
        made = yaml.load(document(name), Loader=yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, KeyError):
        return
    if isinstance(made, dict):
        problems = bodies.read(made).problems
        assert sum(map(len, problems)) <= 9 * (PATH_CHARACTERS + MESSAGE_CHARACTERS)


def test_a_key_forges_no_line() -> None:
    """A path has anybody's keys: what moves a terminal's cursor or begins a line is written out."""
    assert shown_path("spec.a\n\x1b[31mb") == r"spec.a\n\x1b[31mb"
    assert shown_path("spec.größe[0]") == "spec.größe[0]"
    assert len(shown_path("\n" * PATH_CHARACTERS)) == PATH_CHARACTERS
    with pytest.raises(PipelineFileError) as refusal:
        load_pipelines(text(components=[{"engine": "mocker", "x\nf.yaml:1: all is well": 1}]), "f.yaml")
    assert len(str(refusal.value).splitlines()) == 1


def test_a_rendering_error_is_short() -> None:
    """A pod template has anybody's keys, and they are in the path."""
    assert len(str(RenderError(f"spec.{LONG}.image", f"is {LONG}"))) <= MESSAGE_CHARACTERS
