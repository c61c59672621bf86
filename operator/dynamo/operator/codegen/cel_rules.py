"""The rules of `api/rules.py` in CEL, so that `kubectl apply` refuses with the same sentences.

`crd.py` puts them into the schema; a test runs both over the same pipelines. What
limits how they are written, tried on Kubernetes 1.34: `namespace` is a reserved word
(`__namespace__`), `string(int)` in a message is refused as too costly, every list and
text that a rule reads needs a bound. A rule over the root blocks even label edits of
objects that break it, so those two must never become stricter; `engineArgs` and the
component's rules may, since unchanged components aren't checked again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynamo.operator.api import rules
from dynamo.operator.api.bounds import PODS
from dynamo.operator.api.v1alpha1 import Engine

ROOT = ""
SPEC = "spec"
SOURCE = "spec.model.source"
FRONTEND = "spec.frontend"
COMPONENT = "spec.components[]"
ROLLOUT = "spec.components[].rollout"
VARIABLE = "spec.components[].env[]"
CLAIM = "spec.components[].resourceClaims[]"
TOLERATION = "spec.components[].tolerations[]"
CACHE = "spec.model.cache"

BY_SCHEMA = {
    "names_are_unique": "spec.components is a map by name",
    "claims_name_one": "components[].resourceClaims is a map by name",
    "variables_are_sound": "components[].env is a map by name",
}
"""Rules that the schema holds (also), and how."""
BY_THE_OPERATOR = frozenset({"templates_have_amounts"})
"""CEL doesn't see what is in a pod template."""


@dataclass(frozen=True)
class CelRule:
    """An entry of `x-kubernetes-validations` at `place`."""

    mirrors: str
    """The function of `api/rules.py`; empty where only the API server can check it."""
    place: str
    rule: str
    message: str
    field: str = ""
    expression: str = ""
    """A message that names what it is about, where CEL can make one."""

    def entry(self) -> dict[str, Any]:
        """Return the entry as the CRD wants it."""
        fields = {"rule": self.rule, "message": self.message, "messageExpression": self.expression}
        return {k: v for k, v in {**fields, "fieldPath": self.field}.items() if v}


def _listed(engines: frozenset[Engine]) -> str:
    return "[" + ", ".join(f"'{e}'" for e in Engine if e in engines) + "]"


def _any_of(engines: frozenset[Engine]) -> str:
    return ", ".join(e for e in Engine if e in engines)


def spellings(argument: str) -> list[str]:
    """Return the usual spellings of an engine's argument; the operator knows the stranger ones too."""
    forms = [argument] if "-" not in argument else [argument, argument.replace("-", "_")]
    return [prefix + form for prefix in ("", "--") for form in forms]


def cel_name(name: str) -> str:
    """Return a property's name as CEL wants it escaped."""
    return name.replace("__", "__underscores__").replace("-", "__dash__")


_LIMIT = rules.NAMES_TOGETHER

_ROOT_RULES = (
    CelRule(
        "names_fit",
        ROOT,
        f"self.spec.components.all(c, self.metadata.name.size() + c.name.size() <= {_LIMIT})",
        f"metadata.name and the name of a component have more than {_LIMIT} characters together: shorten one",
    ),
    CelRule(
        "",
        ROOT,
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be lower-case letters, digits and '-', beginning with a letter and not ending with '-': "
        "the names of Services are built from it",
    ),
)

_SPEC_RULES = (
    CelRule(
        "replicas_has_effect",
        SPEC,
        "self.replicas == 1 || self.components.exists(c, !has(c.replicas))",
        "replicas has no effect because every component sets its own: "
        "remove components[].replicas from the one to scale",
        ".replicas",
    ),
    CelRule(
        "model_is_known",
        SPEC,
        f"has(self.model.source) || self.components.all(c, c.engine in {_listed(rules.NEED_NO_MODEL)})",
        f"model.source is required by every engine but {_any_of(rules.NEED_NO_MODEL)}: "
        "set it to hf://org/repo, file:///path or a path",
        ".model",
    ),
    CelRule(
        "prefill_and_decode_come_together",
        SPEC,
        "self.components.exists(c, has(c.role) && c.role == 'prefill') == "
        "self.components.exists(c, has(c.role) && c.role == 'decode')",
        "role prefill needs a component with role decode and the other way round: add one, or use role aggregated",
        ".components",
    ),
    CelRule(
        "pods_are_few",
        SPEC,
        # The chart puts its own number here and into the message: `charts/dynamo-platform/templates/crds.yaml`.
        "self.components.map(c, (has(c.replicas) ? c.replicas : self.replicas) * (has(c.nodes) ? c.nodes : 1)).sum() "
        f"<= {PODS}",
        f"replicas times nodes of all components must be {PODS} pods at most: ask for fewer, or make several pipelines",
        ".components",
    ),
    CelRule(
        "",
        SPEC,
        "has(self.__namespace__) == has(oldSelf.__namespace__) && "
        "(!has(self.__namespace__) || self.__namespace__ == oldSelf.__namespace__)",
        "namespace can't change while the pipeline lives, since old and new parts would not find each other: "
        "make a new pipeline",
        ".namespace",
    ),
)


def _source(rule: str, message: str) -> CelRule:
    return CelRule("source_is_readable", SOURCE, rule, message)


_SOURCE_RULES = (
    _source(
        f"!self.contains('://') || self.matches('^({'|'.join(rules.SCHEMES)})://')",
        "source has an unknown scheme: use hf://, pvc://, file://, package:// or a path",
    ),
    _source(
        "!self.startsWith('file://') || self.startsWith('file:///')",
        "source with file:// needs an absolute path: file:///models/x.gguf, or leave file:// out",
    ),
    _source(
        "!self.startsWith('pvc://') || self.matches('^(?s)pvc://[^/]+/.')",
        "source with pvc:// needs a claim and a path: pvc://models/llama",
    ),
    _source(
        "!self.startsWith('hf://') || self.matches('^hf:///*[^/@]+/+[^/@]+(/+[^@]*[.]gguf)?/*(@|$)')",
        "source with hf:// needs an organisation and a repository: hf://org/repo, hf://org/repo@rev or "
        "hf://org/repo/file.gguf",
    ),
    _source("self != 'package://'", "source with package:// needs a name after it"),
)

_COMPONENT_RULES = (
    CelRule(
        "nodes_divide",
        COMPONENT,
        "(has(self.tensorParallelSize) ? self.tensorParallelSize : 1) % (has(self.nodes) ? self.nodes : 1) == 0",
        "tensorParallelSize must be divisible by nodes: choose nodes that divides it",
        ".nodes",
        "'component ' + self.name + ': tensorParallelSize must be divisible by nodes: choose nodes that divides it'",
    ),
    CelRule(
        "nodes_need_an_engine_for_it",
        COMPONENT,
        f"!has(self.nodes) || self.nodes == 1 || self.engine in {_listed(rules.MULTI_NODE)}",
        f"this engine runs on one node: set nodes to 1, or use {_any_of(rules.MULTI_NODE)}",
        ".nodes",
        f"'engine ' + self.engine + ' runs on one node: set nodes to 1, or use {_any_of(rules.MULTI_NODE)}'",
    ),
    CelRule(
        "role_needs_an_engine_for_it",
        COMPONENT,
        f"!has(self.role) || self.role == 'aggregated' || self.engine in {_listed(rules.DISAGGREGATED)}",
        f"this engine can't split prefill and decode: use role aggregated, or {_any_of(rules.DISAGGREGATED)}",
        ".role",
        "'engine ' + self.engine + ' can\\'t split prefill and decode: "
        f"use role aggregated, or {_any_of(rules.DISAGGREGATED)}'",
    ),
    CelRule(
        "python_is_for_python",
        COMPONENT,
        "self.engine != 'python' || has(self.python)",
        "python is required with engine python: set python.file to your code",
        ".engine",
    ),
    CelRule(
        "python_is_for_python",
        COMPONENT,
        "self.engine == 'python' || !has(self.python)",
        "python is for engine python: remove it, or set engine to python",
        ".python",
    ),
    CelRule(
        "server_is_for_openai",
        COMPONENT,
        "self.engine == 'openai' || !(has(self.command) || has(self.args) || has(self.upstream))",
        "command, args and upstream are for engine openai: remove them, or set engine to openai",
        ".engine",
    ),
    CelRule(
        "name_is_free",
        COMPONENT,
        " && ".join(f"self.name != '{name}'" for name in sorted(rules.RESERVED_NAMES)),
        "name is taken by the pipeline's own parts (frontend): choose another",
        ".name",
    ),
    CelRule(
        "gangs_have_nodes",
        COMPONENT,
        "!has(self.gangScheduling) || !self.gangScheduling || (has(self.nodes) && self.nodes > 1)",
        "gangScheduling is for workers of several pods: set nodes above 1, or remove it",
        ".gangScheduling",
    ),
    *(
        CelRule(
            "arguments_are_not_ours",
            COMPONENT,
            "!has(self.engineArgs) || " + " && ".join(f"!has(self.engineArgs.{cel_name(s)})" for s in spellings(name)),
            f"engineArgs.{name} repeats what the pipeline sets: use {field}",
            ".engineArgs",
        )
        for name, field in rules.OWN_ARGUMENTS.items()
    ),
)

_INNER_RULES = (
    CelRule(
        "one_way_in",
        FRONTEND,
        "!has(self.ingress) || !has(self.httpRoute)",
        "httpRoute and ingress are both set, and requests come in by one of them: keep one",
        ".httpRoute",
    ),
    CelRule(
        "rollout_can_move",
        ROLLOUT,
        "!has(self.strategy) || self.strategy != 'Recreate' || (!has(self.maxSurge) && !has(self.maxUnavailable))",
        "strategy Recreate takes neither maxSurge nor maxUnavailable: remove them, or use Rolling",
        ".strategy",
    ),
    CelRule(
        "rollout_can_move",
        ROLLOUT,
        "!has(self.maxSurge) || !has(self.maxUnavailable) || "
        "!((type(self.maxSurge) == int ? self.maxSurge == 0 : self.maxSurge == '0%') && "
        "(type(self.maxUnavailable) == int ? self.maxUnavailable == 0 : self.maxUnavailable == '0%'))",
        "maxSurge and maxUnavailable are both 0, so no rollout could ever proceed: raise one",
    ),
    *(
        CelRule(
            "variables_are_sound",
            VARIABLE,
            f"self.name != '{name}'",
            f"{name} is set by the pipeline: use {field}",
            ".name",
        )
        for name, field in rules.OWN_VARIABLES.items()
    ),
    CelRule(
        "variables_are_sound",
        VARIABLE,
        "!has(self.value) || !has(self.valueFrom)",
        "a variable has both value and valueFrom: remove one",
        "",
        "self.name + ' has both value and valueFrom: remove one'",
    ),
)

_PLACEMENT_RULES = (
    CelRule(
        "claims_name_one",
        CLAIM,
        "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
        "a claim needs either resourceClaimName or resourceClaimTemplateName: set one of them",
    ),
    CelRule(
        "tolerations_are_sound",
        TOLERATION,
        "!has(self.operator) || self.operator != 'Exists' || !has(self.value) || self.value == ''",
        "value has no meaning with operator Exists: remove it, or use Equal",
        ".value",
    ),
    CelRule(
        "tolerations_are_sound",
        TOLERATION,
        "has(self.key) || (has(self.operator) && self.operator == 'Exists')",
        "operator must be Exists without a key: set it, or name the key",
    ),
    CelRule(
        "tolerations_are_sound",
        TOLERATION,
        "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
        "tolerationSeconds needs effect NoExecute: set it, or remove the seconds",
        ".tolerationSeconds",
    ),
    CelRule(
        "cache_is_made_or_named",
        CACHE,
        "has(self.size) != has(self.claimName)",
        "cache needs either size, for a new claim, or claimName: set one of them",
    ),
    CelRule(
        "cache_is_made_or_named",
        CACHE,
        "!has(self.claimName) || (!has(self.storageClassName) && !has(self.accessMode))",
        "claimName names a claim that exists: remove storageClassName and accessMode",
        ".claimName",
    ),
)

CEL_RULES: tuple[CelRule, ...] = (
    *_ROOT_RULES,
    *_SPEC_RULES,
    *_SOURCE_RULES,
    *_COMPONENT_RULES,
    *_INNER_RULES,
    *_PLACEMENT_RULES,
)
