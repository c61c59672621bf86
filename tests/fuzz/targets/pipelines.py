"""Target `pipelines`: DynamoPipelines of a hostile tenant, through reading, validation and rendering."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

import yaml
from tests.operator.pipelines import FULL, ROUTED, SMALLEST, body
from tests.operator.rendered import CLUSTER, CLUSTER_SETTINGS, SECURED

from dynamo.operator.api import body as bodies
from dynamo.operator.api.load import PipelineFileError, load_pipelines
from dynamo.operator.manifests.context import RenderError
from dynamo.operator.manifests.render import manifests, with_images
from dynamo.operator.plan.plan import plan

LONGEST: Final = 20_000
"""Characters of a refusal."""
MOST: Final = 4_000
"""Objects of one pipeline."""
_ENGINE: Final = {"engine": "mocker"}


class TooMuchError(Exception):
    """A pipeline that is more than an operator should be asked for."""


def looked_at(spec: Any) -> None:
    """Do what a reconcile of the operator does: read it, check it, render it for both kinds of cluster."""
    look(body(spec))


def look(made: Any) -> None:
    """Do it with an object, as the API server has it."""
    pipelines, problems = bodies.read(made)
    if (length := sum(map(len, problems))) > LONGEST:
        raise TooMuchError(f"a refusal of {length} characters")
    if pipelines is None:
        return
    for cluster in (CLUSTER_SETTINGS, SECURED):
        try:
            objects = manifests(pipelines, with_images(plan(pipelines, CLUSTER), pipelines, cluster), cluster)
        except RenderError:
            continue
        if len(objects) > MOST:
            raise TooMuchError(f"{len(objects)} objects of {len(json.dumps(made))} bytes")


def read(text: str) -> None:
    """Do what the command line does with a file."""
    try:
        load_pipelines(text)
    except PipelineFileError as refusal:
        if len(str(refusal)) > LONGEST:
            raise TooMuchError(f"a refusal of {len(str(refusal))} characters") from None


def _groups(components: int, replicas: int, nodes: int) -> dict[str, Any]:
    return {
        "model": {"source": "hf://a/b"},
        "components": [
            {"name": f"c{n}", "engine": "vllm", "replicas": replicas, "nodes": nodes, "tensorParallelSize": nodes}
            for n in range(components)
        ],
    }


def _deep(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


_MANY: Final = {f"k{number}": "v" for number in range(2000)}
SPECS: Final[dict[str, Callable[[], Any]]] = {
    "4 components of 1,000 groups of 2": lambda: _groups(4, 1000, 2),
    "16 components of 1,000 groups of 2": lambda: _groups(16, 1000, 2),
    "16 components of 64 groups": lambda: _groups(16, 64, 2),
    "one group of 1,000 nodes": lambda: _groups(1, 1, 1000),
    "a thousand components": lambda: _groups(1000, 1, 1),
    "100,000 components": lambda: {"components": [_ENGINE] * 100_000},
    "engine arguments of 1 MB": lambda: {
        "components": [{**_ENGINE, "engineArgs": {f"k{n}": "v" * 90 for n in range(10_000)}}]
    },
    "engine arguments 200 deep": lambda: {"components": [{**_ENGINE, "engineArgs": _deep(200)}]},
    "engine arguments 900 deep": lambda: {"components": [{**_ENGINE, "engineArgs": _deep(900)}]},
    "a pod template 900 deep": lambda: {"components": [{**_ENGINE, "podTemplate": {"spec": _deep(900)}}]},
    "a pod template of 10,000 containers": lambda: {
        "components": [
            {
                **_ENGINE,
                "podTemplate": {"spec": {"containers": [{"name": f"c{n}", "image": "a"} for n in range(10_000)]}},
            }
        ]
    },
    "a pod template of 10,000 variables": lambda: {
        "components": [
            {
                **_ENGINE,
                "podTemplate": {
                    "spec": {
                        "containers": [
                            {"name": "worker", "env": [{"name": f"A{n}", "value": "$(A1)$(A2)"} for n in range(10_000)]}
                        ]
                    }
                },
            }
        ]
    },
    "20,000 variables": lambda: {
        "components": [{**_ENGINE, "env": [{"name": f"A{n}", "value": "a"} for n in range(20_000)]}]
    },
    "a chat template of 1 MB": lambda: {**SMALLEST, "model": {"source": "hf://a/b", "chatTemplate": "a" * 1_000_000}},
    "quantities of many digits": lambda: {"components": [{**_ENGINE, "resources": {"limits": {"cpu": "9" * 100_000}}}]},
    "a share of many digits": lambda: {"components": [{**_ENGINE, "rollout": {"maxSurge": "9" * 100_000 + "%"}}]},
    "names of 1 MB": lambda: {"namespace": "a" * 1_000_000, "components": [{**_ENGINE, "name": "b" * 1_000_000}]},
    "names with line breaks": lambda: {
        "namespace": "a\nb",
        "components": [{**_ENGINE, "name": "a\n"}],
        "restart": "\x1b[31m\n",
    },
    "numbers out of range": lambda: {
        "components": [{**_ENGINE, "replicas": 10**400, "nodes": -1, "tensorParallelSize": 2**63}]
    },
    "surrogates": lambda: {"components": [{**_ENGINE, "engineArgs": {"a": "\ud800"}}], "restart": "\udfff"},
    "another's namespace": lambda: {**SMALLEST, "namespace": "tenantb_pipe"},
}
SPECS.update(
    {
        "amounts that are mappings": lambda: {
            **SMALLEST,
            "frontend": {"resources": {"limits": {"cpu": {"int": 1}, "memory": {}, "a": [1]}}},
        },
        "engines that are mappings": lambda: {"components": [{"engine": _MANY}] * 16},
        "arguments with long names": lambda: {"components": [{**_ENGINE, "engineArgs": {"-" * 200_000 + "model": 1}}]},
    }
)
_LAUGHS: Final = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
TEXTS: Final[dict[str, Callable[[], str]]] = {
    "a milliard laughs": lambda: _LAUGHS,
    "an anchor of itself": lambda: "a: &a [*a]\n",
    "brackets in brackets": lambda: "[" * 20_000,
    "braces in braces": lambda: "{a: " * 20_000,
    "indents": lambda: "".join(f"{' ' * n}a:\n" for n in range(900)),
    "100,000 documents": lambda: "---\na: 1\n" * 20_000,
    "tags": lambda: "a: !!python/object/apply:os.system [id]\nb: !!binary '%%%'\nc: !!timestamp 9999-99-99\n",
    "merge keys": lambda: "a: &a {b: 1}\nc: {<<: [*a, *a, *a], <<: *a}\n",
    "numbers": lambda: f"a: {'9' * 100_000}\nb: 0x{'f' * 100_000}\nc: {'1:' * 50_000}1\nd: .inf\ne: 1e99999\n",
    "engines of 20 KB": lambda: yaml.safe_dump(body({"components": [{"engine": _MANY}] * 16})),
    "a list in the place of a mapping": lambda: yaml.safe_dump(
        body({**SMALLEST, "frontend": [{"resources": {"limits": [{"cpu": "a"}]}}]})
    ),
    "an engine of 0.9 MB": lambda: yaml.safe_dump(body({"components": [{"engine": "x" * 900_000}]})),
    "a field of 0.9 MB": lambda: yaml.safe_dump(body({"components": [{**_ENGINE, "x" * 900_000: 1}]})),
    "a long key": lambda: f"? {'a' * 500_000}\n: 1\n",
    "control characters": lambda: "a: \x00\x1b\x85\u2028\n",
}


def corpus() -> dict[str, Callable[[], object]]:
    """Pipelines that cost something once, or are likely to."""
    results: dict[str, Callable[[], object]] = {
        name: functools.partial(_looked_at, make) for name, make in SPECS.items()
    }
    return results | {f"text: {name}": functools.partial(_read, make) for name, make in TEXTS.items()}


def _looked_at(make: Callable[[], Any]) -> None:
    looked_at(make())


def _read(make: Callable[[], str]) -> None:
    read(make())


_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1,
    1000,
    1001,
    2**31,
    2**63,
    10**400,
    0.5,
    1e308,
    "",
    "a",
    "a" * 70_000,
    "a\nb",
    "A_b",
    "-",
    "..",
    "a/b",
    "$(A)",
    "{{ a }}",
    "100%",
    "1e9Gi",
    "9" * 400,
    "\ud800",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {"name": "a"},
    [{"name": "a"}] * 2_000,
    {f"k{number}": "v" for number in range(2_000)},
    "\x1b[31m",
    "hf://a/b",
    "hf://../..",
    "package://-",
)


def case(random: Random) -> tuple[str, Callable[[], object]]:
    """A whole pipeline with some fields changed, as an object or as text."""
    spec = copy.deepcopy(random.choice((FULL, ROUTED, SMALLEST)))
    where = [_changed(random, spec) for _ in range(random.choice((1, 1, 2, 4)))]
    if random.random() < 0.3:
        text = yaml.safe_dump(body(spec)) if random.random() < 0.5 else json.dumps(body(spec))
        at = random.randrange(len(text))
        text = text[:at] + random.choice(("", "\t", "&a ", "*a", "!!", "\n", "- ", "{", "'", ": ")) + text[at:]
        return f"text {', '.join(where)}", functools.partial(read, text)
    return ", ".join(where), functools.partial(looked_at, spec)


def _changed(random: Random, tree: Any) -> str:
    path: list[Any] = []
    while isinstance(tree, (dict, list)) and tree:
        key: Any = random.choice([*tree]) if isinstance(tree, dict) else random.randrange(len(tree))
        path.append(key)
        if not isinstance(tree[key], (dict, list)) or not tree[key] or random.random() < 0.2:
            what = random.random()
            if what < 0.15 and isinstance(tree, dict):
                tree[random.choice(("unknown", "replicas", "nodes", "env", "name"))] = copy.deepcopy(
                    random.choice(_VALUES)
                )
            elif what < 0.25 and isinstance(tree, list):
                tree *= random.choice((2, 50))
            else:
                tree[key] = copy.deepcopy(random.choice(_VALUES))
            break
        tree = tree[key]
    return ".".join(map(str, path))[:60]
