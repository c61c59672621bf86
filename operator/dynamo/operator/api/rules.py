"""Rules of a pipeline that need more than one field; CEL in the CRD has the same sentences.

Each rule is a function from a pipeline to what is wrong with it. `load.py` runs them all
and reports everything at once; the operator runs them again on what the API server let in.
Rules over the root object or the spec can't be tightened later (a stricter rule there
blocks label edits and `kubectl scale` of objects that exist), those over a component can.

One of them reads amounts in pod templates: the CRD takes a pod template as it is, and the API server answers an
internal error to an amount that it can't read, without field or value (to one with a huge exponent only after half a
minute).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dynamo.engine_catalog import CATALOG
from dynamo.operator.api.bounds import DEPTH, PODS
from dynamo.operator.api.fields import QUANTITY, QUANTITY_CHARACTERS
from dynamo.operator.api.shown import shown, shown_text
from dynamo.operator.api.v1alpha1 import Component, DynamoPipeline, Engine, Role

NAMES_TOGETHER = 38
"""Most characters of the pipeline's and a component's name: StatefulSets are `<pipeline>-<component>-<revision>`."""

CPU_ENGINES = frozenset(engine for engine, traits in CATALOG.items() if traits.cpu_only)
"""Engines whose workers ask for no GPU unless `accelerator` says so."""

NEED_NO_MODEL = frozenset(engine for engine, traits in CATALOG.items() if not traits.needs_model)
MULTI_NODE = frozenset(engine for engine, traits in CATALOG.items() if traits.multi_node)
DISAGGREGATED = frozenset(engine for engine, traits in CATALOG.items() if traits.disaggregated)

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
    """A problem at `path` (`spec.components[1].engine`), with the remedy in `message`."""

    path: str
    message: str


Rule = Callable[[DynamoPipeline], Iterator[Problem]]
ComponentRule = Callable[[Component], Iterator[Problem]]
"""Rules over one component give paths relative to it."""


def names_fit(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check the names' lengths: children are named after both, and Kubernetes limits them."""
    for index, component in enumerate(pipeline.spec.components):
        together = len(pipeline.name) + len(component.name)
        if together > NAMES_TOGETHER:
            yield Problem(
                f"spec.components[{index}].name",
                f"{component.name!r} and the pipeline's name {shown(pipeline.name)} have {together} characters "
                f"together, {NAMES_TOGETHER} at most: shorten one",
            )


def names_are_unique(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check that components' names are unique; in the CRD: `x-kubernetes-list-type: map` by name."""
    first: dict[str, int] = {}
    for index, component in enumerate(pipeline.spec.components):
        other = first.setdefault(component.name, index)
        if other != index:
            yield Problem(
                f"spec.components[{index}].name",
                f"{component.name!r} is already the name of spec.components[{other}]: give each component its own",
            )


def model_is_known(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check for a model: only engines that make up their answers do without."""
    needing = [c for c in pipeline.spec.components if c.engine not in NEED_NO_MODEL]
    if needing and pipeline.spec.model.source is None:
        yield Problem(
            "spec.model.source",
            f"is required by engine {needing[0].engine} (component {needing[0].name!r}): "
            "set it to hf://org/repo, file:///path or a path",
        )


_HUB_NAME = re.compile(r"/*[^/@]+/+[^/@]+(/+[^@]*[.]gguf)?/*(@|\Z)")


def source_is_readable(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check the model's source: without a scheme it is a path; with a scheme it must be ours and complete."""
    source = pipeline.spec.model.source or ""
    scheme, separator, rest = source.partition("://")
    if not separator:
        return
    if scheme not in SCHEMES:
        yield Problem(
            "spec.model.source", f"{shown_text(scheme)}:// is unknown: use hf://, pvc://, file://, package:// or a path"
        )
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
    """Check for both prefill and decode: half of a disaggregated pair serves nobody."""
    roles = {c.role for c in pipeline.spec.components}
    for present, missing in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
        if present in roles and missing not in roles:
            index = next(i for i, c in enumerate(pipeline.spec.components) if c.role is present)
            yield Problem(
                f"spec.components[{index}].role",
                f"{present} needs a component with role {missing}: add one, or use role aggregated",
            )


def replicas_has_effect(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check that `spec.replicas` is used: `kubectl scale` must not report success and change nothing."""
    if pipeline.spec.replicas != 1 and all(c.replicas is not None for c in pipeline.spec.components):
        yield Problem(
            "spec.replicas",
            "has no effect because every component sets its own: remove components[].replicas from the one to scale",
        )


def pods_are_few(pipeline: DynamoPipeline, most: int = PODS) -> Iterator[Problem]:
    """Check the number of pods: a pipeline must not take time and room from all others."""
    counts = [
        (pipeline.spec.replicas if c.replicas is None else c.replicas) * c.nodes for c in pipeline.spec.components
    ]
    if sum(counts) > most:
        largest = counts.index(max(counts))
        yield Problem(
            f"spec.components[{largest}]",
            f"replicas times nodes of all components are {sum(counts)} pods, {most} at most: "
            "ask for fewer, or make several pipelines",
        )


def templates_have_amounts(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check amounts: the API server answers an internal error to those that it can't read."""
    templates = [("spec.frontend.podTemplate", pipeline.spec.frontend.pod_template)]
    templates += [(f"spec.components[{i}].podTemplate", c.pod_template) for i, c in enumerate(pipeline.spec.components)]
    for path, template in templates:
        for place, value in unreadable(template or {}):
            yield Problem(f"{path}.{place}", f"{shown(value)} must be a quantity like 500m, 4 or 40Gi")


def one_way_in(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check that only an Ingress or an HTTPRoute is asked for: status.url names one."""
    if pipeline.spec.frontend.ingress and pipeline.spec.frontend.http_route:
        yield Problem("spec.frontend.httpRoute", "ingress is set too, and requests come in by one of them: keep one")


def nodes_divide(component: Component) -> Iterator[Problem]:
    """Check that every pod of a group gets the same number of GPUs."""
    if component.tensor_parallel_size % component.nodes:
        yield Problem(
            "nodes",
            f"tensorParallelSize ({component.tensor_parallel_size}) must be divisible by nodes ({component.nodes}): "
            "choose nodes that divides it",
        )


def nodes_need_an_engine_for_it(component: Component) -> Iterator[Problem]:
    """Check that the engine can run on several nodes."""
    if component.nodes > 1 and component.engine not in MULTI_NODE:
        yield Problem(
            "nodes", f"engine {component.engine} runs on one node: set nodes to 1, or use {_any_of(MULTI_NODE)}"
        )


def role_needs_an_engine_for_it(component: Component) -> Iterator[Problem]:
    """Check that the engine can hand KV blocks over, where prefill and decode are apart."""
    if component.role is not Role.AGGREGATED and component.engine not in DISAGGREGATED:
        yield Problem(
            "role",
            f"engine {component.engine} can't split prefill and decode: use aggregated, or {_any_of(DISAGGREGATED)}",
        )


def python_is_for_python(component: Component) -> Iterator[Problem]:
    """Check that user code comes with the engine that runs it, and only with that."""
    if component.engine is Engine.PYTHON and component.python is None:
        yield Problem("python", "is required with engine python: set python.file to your code")
    if component.engine is not Engine.PYTHON and component.python is not None:
        yield Problem("python", f"is for engine python, not {component.engine}: remove it, or set engine to python")


def server_is_for_openai(component: Component) -> Iterator[Problem]:
    """Check that a server is described for the engine that asks one."""
    if component.engine is Engine.OPENAI:
        return
    for name in ("command", "args", "upstream"):
        if getattr(component, name) is not None:
            yield Problem(name, f"is for engine openai, not {component.engine}: remove it, or set engine to openai")


def arguments_are_not_ours(component: Component) -> Iterator[Problem]:
    """Check that engine arguments don't repeat what the pipeline sets."""
    for name in component.engine_args:
        field = OWN_ARGUMENTS.get(name.lstrip("-").replace("_", "-"))
        if field:
            yield Problem(f"engineArgs.{name}", f"repeats what the pipeline sets: use {field}")


def variables_are_sound(component: Component) -> Iterator[Problem]:
    """Check variables: the API server refuses duplicate or double-sourced ones with an unclear message."""
    seen: set[str] = set()
    for index, variable in enumerate(component.env):
        if variable.name in OWN_VARIABLES:
            yield Problem(
                f"env[{index}].name", f"{variable.name} is set by the pipeline: use {OWN_VARIABLES[variable.name]}"
            )
        if variable.name in seen:
            yield Problem(f"env[{index}].name", f"{shown_text(variable.name)} is set twice: remove one")
        if variable.value is not None and variable.value_from is not None:
            yield Problem(f"env[{index}]", f"{shown_text(variable.name)} has both value and valueFrom: remove one")
        seen.add(variable.name)


def claims_name_one(component: Component) -> Iterator[Problem]:
    """Check device claims: each is an existing one or is made of a template, under a name of its own."""
    seen: set[str] = set()
    for index, claim in enumerate(component.resource_claims or ()):
        if (claim.resource_claim_name is None) == (claim.resource_claim_template_name is None):
            yield Problem(
                f"resourceClaims[{index}]",
                f"{claim.name!r} needs either resourceClaimName or resourceClaimTemplateName: set one of them",
            )
        if claim.name in seen:
            yield Problem(f"resourceClaims[{index}].name", f"{claim.name!r} occurs twice: remove one")
        seen.add(claim.name)


def tolerations_are_sound(component: Component) -> Iterator[Problem]:
    """Check tolerations as the API server does: of a StatefulSet's pods it would refuse each, long after."""
    for index, toleration in enumerate(component.tolerations or ()):
        place = f"tolerations[{index}]"
        if toleration.operator == "Exists" and toleration.value:
            yield Problem(f"{place}.value", "has no meaning with operator Exists: remove it, or use Equal")
        if toleration.operator == "Equal" and toleration.key is None:
            yield Problem(f"{place}.operator", "must be Exists without a key: set it, or name the key")
        if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
            yield Problem(f"{place}.tolerationSeconds", "needs effect NoExecute: set it, or remove the seconds")


def gangs_have_nodes(component: Component) -> Iterator[Problem]:
    """Check that a gang has several pods: a worker of one node starts alone."""
    if component.gang_scheduling and component.nodes == 1:
        yield Problem("gangScheduling", "is for workers of several pods: set nodes above 1, or remove it")


def cache_is_made_or_named(pipeline: DynamoPipeline) -> Iterator[Problem]:
    """Check the model cache: a claim that is made needs a size, one that exists has its own."""
    cache = pipeline.spec.model.cache
    if cache is None:
        return
    if (cache.size is None) == (cache.claim_name is None):
        yield Problem("spec.model.cache", "needs either size, for a new claim, or claimName: set one of them")
    elif cache.claim_name is not None and (cache.storage_class_name or cache.access_mode):
        yield Problem("spec.model.cache.claimName", "names a claim that exists: remove storageClassName and accessMode")


def name_is_free(component: Component) -> Iterator[Problem]:
    """Check reserved names: `<pipeline>-frontend` belongs to the frontends."""
    if component.name in RESERVED_NAMES:
        yield Problem("name", f"{component.name!r} is taken by the pipeline's own parts: choose another")


def rollout_can_move(component: Component) -> Iterator[Problem]:
    """Check that a rollout has room above or below."""
    rollout = component.rollout
    zero = (0, "0%")
    if rollout.strategy == "Recreate" and (rollout.max_surge, rollout.max_unavailable) != (None, None):
        yield Problem(
            "rollout.strategy", "Recreate takes neither maxSurge nor maxUnavailable: remove them, or use Rolling"
        )
    elif rollout.max_surge in zero and rollout.max_unavailable in zero:
        yield Problem("rollout", "maxSurge and maxUnavailable are both 0, so no rollout could ever proceed: raise one")


ROOT_RULES: tuple[Rule, ...] = (names_fit, replicas_has_effect)
SPEC_RULES: tuple[Rule, ...] = (
    names_are_unique,
    model_is_known,
    source_is_readable,
    prefill_and_decode_come_together,
    pods_are_few,
    templates_have_amounts,
    one_way_in,
    cache_is_made_or_named,
)
COMPONENT_RULES: tuple[ComponentRule, ...] = (
    nodes_divide,
    nodes_need_an_engine_for_it,
    role_needs_an_engine_for_it,
    python_is_for_python,
    server_is_for_openai,
    arguments_are_not_ours,
    variables_are_sound,
    name_is_free,
    rollout_can_move,
    claims_name_one,
    tolerations_are_sound,
    gangs_have_nodes,
)


def check(pipeline: DynamoPipeline, pods: int = PODS) -> list[Problem]:
    """Return everything that is wrong with a pipeline whose fields are each well-formed."""
    others = [rule for rule in (*ROOT_RULES, *SPEC_RULES) if rule is not pods_are_few]
    problems = [problem for rule in others for problem in rule(pipeline)]
    problems += pods_are_few(pipeline, pods)
    for index, component in enumerate(pipeline.spec.components):
        for component_rule in COMPONENT_RULES:
            problems += [Problem(f"spec.components[{index}].{p.path}", p.message) for p in component_rule(component)]
    return problems


def _any_of(engines: frozenset[Engine]) -> str:
    return ", ".join(e for e in Engine if e in engines)


_READABLE: Final = re.compile(QUANTITY)
_MAPS: Final = frozenset({"limits", "requests", "overhead"})
_SINGLE: Final = frozenset({"sizeLimit", "divisor"})
_NOT_OURS: Final = frozenset({"metadata", "nodeSelector", "matchLabels"})
"""Anybody's names."""


def unreadable(template: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each unreadable amount."""
    stack: list[tuple[str, Any, int]] = [("", template, 0)]
    while stack:
        path, value, depth = stack.pop()
        if isinstance(value, list):
            stack += [(f"{path}[{index}]", item, depth + 1) for index, item in enumerate(value)]
        elif isinstance(value, dict) and depth < DEPTH:
            for name, inner in value.items():
                place = f"{path}.{name}" if path else name
                yield from _amounts(name, inner, place)
                if name not in _NOT_OURS:
                    stack.append((place, inner, depth + 1))


def _amounts(name: str, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if name in _SINGLE and not _is_amount(value):
        yield path, value
    elif name in _MAPS and isinstance(value, dict):
        yield from (
            (f"{path}.{key}", amount) for key, amount in value.items() if key != "$patch" and not _is_amount(amount)
        )


def _is_amount(value: Any) -> bool:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return True
    return isinstance(value, str) and len(value) <= QUANTITY_CHARACTERS and _READABLE.fullmatch(value) is not None
