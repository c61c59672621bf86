"""Rules of a pipeline that need more than one field; CEL in the CRD says the same sentences.

Each rule is a function from a pipeline to what is wrong with it. `load.py` runs them all
and reports everything at once; the operator runs them again on what the API server let in.
Rules over the root object or the spec can't be tightened later (a stricter rule there
blocks label edits and `kubectl scale` of objects that exist), those over a component can.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline, Engine, Role

NAMES_TOGETHER = 38
"""Most characters of the pipeline's and a component's name: StatefulSets are `<pipeline>-<component>-<revision>`."""

CPU_ENGINES = frozenset({Engine.LLAMACPP, Engine.MISTRALRS, Engine.MOCKER, Engine.ECHO_CORE, Engine.ECHO_FULL})
"""Engines whose workers ask for no GPU unless `accelerator` says so."""

NEED_NO_MODEL = frozenset({Engine.ECHO_CORE, Engine.ECHO_FULL, Engine.MOCKER, Engine.PYTHON})
MULTI_NODE = frozenset({Engine.VLLM, Engine.SGLANG, Engine.TRTLLM, Engine.MOCKER})
DISAGGREGATED = frozenset({Engine.VLLM, Engine.SGLANG, Engine.TRTLLM, Engine.MOCKER, Engine.PYTHON})

SCHEMES = ("hf", "pvc", "file", "package")
RESERVED_NAMES = frozenset({"frontend"})

OWN_ARGUMENTS = {
    "model": "spec.model.source",
    "model-path": "spec.model.source",
    "served-model-name": "spec.model.name",
    "tensor-parallel-size": "tensorParallelSize",
    "block-size": "kvCacheBlockSize",
}
"""Engine arguments that the pipeline sets itself, and the field to use instead."""

OWN_VARIABLES = {
    "DYN_NAMESPACE": "spec.namespace",
    "ETCD_ENDPOINTS": "spec.runtime.etcd.endpoints",
    "NATS_SERVER": "spec.runtime.nats.url",
}


class Problem(NamedTuple):
    """Something wrong at `path` (`spec.components[1].engine`), with the remedy in `message`."""

    path: str
    message: str


Rule = Callable[[DynamoPipeline], Iterator[Problem]]
ComponentRule = Callable[[Component], Iterator[Problem]]
"""Rules over one component give paths relative to it."""


def names_fit(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Children are named after both, and Kubernetes limits them."""
    for index, component in enumerate(pipeline.spec.components):
        together = len(pipeline.name) + len(component.name)
        if together > NAMES_TOGETHER:
            yield Problem(
                f"spec.components[{index}].name",
                f"{component.name!r} and the pipeline's name {pipeline.name!r} have {together} characters together, "
                f"{NAMES_TOGETHER} at most: shorten one",
            )


def names_are_unique(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """In the CRD: `x-kubernetes-list-type: map` by name."""
    first: dict[str, int] = {}
    for index, component in enumerate(pipeline.spec.components):
        other = first.setdefault(component.name, index)
        if other != index:
            yield Problem(
                f"spec.components[{index}].name",
                f"{component.name!r} is already the name of spec.components[{other}]: give each component its own",
            )


def model_is_known(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Only engines that make up their answers do without a model."""
    needing = [c for c in pipeline.spec.components if c.engine not in NEED_NO_MODEL]
    if needing and pipeline.spec.model.source is None:
        yield Problem(
            "spec.model.source",
            f"is required by engine {needing[0].engine} (component {needing[0].name!r}): "
            "set it to hf://org/repo, file:///path or a path",
        )


_HUB_NAME = re.compile(r"/*[^/@]+/+[^/@]+(/+[^@]*[.]gguf)?/*(@|\Z)")


def source_is_readable(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """A source without a scheme is a path; one with a scheme must be ours and complete."""
    source = pipeline.spec.model.source or ""
    scheme, separator, rest = source.partition("://")
    if not separator:
        return
    if scheme not in SCHEMES:
        yield Problem("spec.model.source", f"{scheme}:// is unknown: use hf://, pvc://, file://, package:// or a path")
    elif scheme == "file" and not rest.startswith("/"):
        yield Problem(
            "spec.model.source", "file:// needs an absolute path: file:///models/x.gguf, or leave file:// out"
        )
    elif scheme == "pvc" and not all(rest.partition("/")[::2]):
        yield Problem("spec.model.source", "pvc:// needs a claim and a path: pvc://models/llama")
    elif scheme == "hf" and not _HUB_NAME.match(rest):
        yield Problem(
            "spec.model.source",
            "hf:// needs an organisation and a repository: hf://org/repo, hf://org/repo@rev or hf://org/repo/file.gguf",
        )
    elif not rest:
        yield Problem("spec.model.source", f"{scheme}:// needs a name after it")


def prefill_and_decode_come_together(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Half of a disaggregated pair serves nobody."""
    roles = {c.role for c in pipeline.spec.components}
    for present, missing in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if present in roles and missing not in roles:
            index = next(i for i, c in enumerate(pipeline.spec.components) if c.role is present)
            yield Problem(
                f"spec.components[{index}].role",
                f"{present} needs a component with role {missing}: add one, or use role aggregated",
            )


def replicas_has_effect(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """`kubectl scale` must not report success and change nothing."""
    if pipeline.spec.replicas != 1 and all(c.replicas is not None for c in pipeline.spec.components):
        yield Problem(
            "spec.replicas",
            "has no effect because every component sets its own: remove components[].replicas from the one to scale",
        )


def one_way_in(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """status.url names one."""
    if pipeline.spec.frontend.ingress and pipeline.spec.frontend.http_route:
        yield Problem("spec.frontend.httpRoute", "ingress is set too, and requests come in by one of them: keep one")


def nodes_divide(component: Component) -> Iterator[Problem]:
    """Every pod of a group gets the same number of GPUs."""
    if component.tensor_parallel_size % component.nodes:
        yield Problem(
            "nodes",
            f"tensorParallelSize ({component.tensor_parallel_size}) must be divisible by nodes ({component.nodes}): "
            "choose nodes that divides it",
        )


def nodes_need_an_engine_for_it(component: Component) -> Iterator[Problem]:
    """Most engines run in one process on one machine."""
    if component.nodes > 1 and component.engine not in MULTI_NODE:
        yield Problem(
            "nodes", f"engine {component.engine} runs on one node: set nodes to 1, or use {_any_of(MULTI_NODE)}"
        )


def role_needs_an_engine_for_it(component: Component) -> Iterator[Problem]:
    """Prefill and decode apart need an engine that hands KV blocks over."""
    if component.role is not Role.AGGREGATED and component.engine not in DISAGGREGATED:
        yield Problem(
            "role",
            f"engine {component.engine} can't split prefill and decode: use aggregated, or {_any_of(DISAGGREGATED)}",
        )


def python_is_for_python(component: Component) -> Iterator[Problem]:
    """User code goes with the engine that runs it."""
    if component.engine is Engine.PYTHON and component.python is None:
        yield Problem("python", "is required with engine python: set python.file to your code")
    if component.engine is not Engine.PYTHON and component.python is not None:
        yield Problem("python", f"is for engine python, not {component.engine}: remove it, or set engine to python")


def arguments_are_not_ours(component: Component) -> Iterator[Problem]:
    """One truth: what the pipeline sets isn't set a second time."""
    for name in component.engine_args:
        field = OWN_ARGUMENTS.get(name.lstrip("-").replace("_", "-"))
        if field:
            yield Problem(f"engineArgs.{name}", f"repeats what the pipeline sets: use {field}")


def variables_are_sound(component: Component) -> Iterator[Problem]:
    """A duplicate or double-sourced variable is refused by the API server with an unclear message."""
    seen: set[str] = set()
    for index, variable in enumerate(component.env):
        if variable.name in OWN_VARIABLES:
            yield Problem(
                f"env[{index}].name", f"{variable.name} is set by the pipeline: use {OWN_VARIABLES[variable.name]}"
            )
        if variable.name in seen:
            yield Problem(f"env[{index}].name", f"{variable.name} is set twice: remove one")
        if variable.value is not None and variable.value_from is not None:
            yield Problem(f"env[{index}]", f"{variable.name} has both value and valueFrom: remove one")
        seen.add(variable.name)


def name_is_free(component: Component) -> Iterator[Problem]:
    """`<pipeline>-frontend` belongs to the frontends."""
    if component.name in RESERVED_NAMES:
        yield Problem("name", f"{component.name!r} is taken by the pipeline's own parts: choose another")


def rollout_can_move(component: Component) -> Iterator[Problem]:
    """A rollout needs room above or below."""
    rollout = component.rollout
    zero = (0, "0%")
    if rollout.strategy == "Recreate" and (rollout.max_surge, rollout.max_unavailable) != (None, None):
        yield Problem(
            "rollout.strategy", "Recreate takes neither maxSurge nor maxUnavailable: remove them, or use Rolling"
        )
    elif rollout.max_surge in zero and rollout.max_unavailable in zero:
        yield Problem("rollout", "maxSurge and maxUnavailable are both 0, so nothing could ever roll: raise one")


ROOT_RULES: tuple[Rule, ...] = (names_fit, replicas_has_effect)
SPEC_RULES: tuple[Rule, ...] = (
    names_are_unique,
    model_is_known,
    source_is_readable,
    prefill_and_decode_come_together,
    one_way_in,
)
COMPONENT_RULES: tuple[ComponentRule, ...] = (
    nodes_divide,
    nodes_need_an_engine_for_it,
    role_needs_an_engine_for_it,
    python_is_for_python,
    arguments_are_not_ours,
    variables_are_sound,
    name_is_free,
    rollout_can_move,
)


def check(pipeline: DynamoPipeline) -> list[Problem]:
    """Everything that is wrong with a pipeline whose fields are each well-formed."""
    found = [problem for rule in (*ROOT_RULES, *SPEC_RULES) for problem in rule(pipeline)]
    for index, component in enumerate(pipeline.spec.components):
        for component_rule in COMPONENT_RULES:
            found += [Problem(f"spec.components[{index}].{p.path}", p.message) for p in component_rule(component)]
    return found


def _any_of(engines: frozenset[Engine]) -> str:
    return ", ".join(e for e in Engine if e in engines)
