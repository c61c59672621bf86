"""Types of `DynamoPipeline` (dynamo.dev/v1alpha1), the one source of the CRD.

Everything that a schema can hold is here: names, types, ranges, patterns, defaults and a
description per field (`kubectl explain` shows it). What needs two fields at once is in
`rules.py`. Attribute names are snake_case, the YAML's are camelCase.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from dynamo.engine_catalog import EngineName, kv_block_sizes
from dynamo.operator.api.bounds import COMPONENTS, NAME_CHARACTERS, NODES, REPLICAS, WORDS_CHARACTERS
from dynamo.operator.api.fields import Fields, ObjectName, Quantity, ResourceSpec, Share
from dynamo.operator.api.frontend import FrontendSpec
from dynamo.operator.api.placement import DnsName
from dynamo.operator.api.server import ServedElsewhere

API_VERSION = "dynamo.dev/v1alpha1"
KIND = "DynamoPipeline"
Engine = EngineName


class Role(StrEnum):
    """Work that the workers of a component do."""

    AGGREGATED = "aggregated"
    PREFILL = "prefill"
    DECODE = "decode"


class SecretKey(Fields):
    """A key of a Secret in the pipeline's namespace."""

    name: ObjectName = Field(description="Name of the Secret in the pipeline's namespace.")
    key: str = Field(default="HF_TOKEN", min_length=1, max_length=253, description="Key in the Secret.")


class ModelCache(Fields):
    """A volume claim that the workers share."""

    size: Quantity | None = Field(default=None, description="Size of the claim that is made, for example 40Gi.")
    claim_name: DnsName | None = Field(
        default=None,
        description="Claim of yours in the pipeline's namespace instead, which pipelines may share and which stays.",
    )
    storage_class_name: ObjectName | None = Field(
        default=None, description="Storage class of the claim; the cluster's default if left out."
    )
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] | None = Field(
        default=None,
        description="Access mode of the claim, default ReadWriteOnce; ReadWriteMany if workers of several nodes "
        "share it.",
    )


class ModelSpec(Fields):
    """The model that the pipeline serves."""

    source: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Where the model comes from: hf://org/repo[/file.gguf][@revision], pvc://claim/path, "
        "file:///path, package://distribution or a path in the image. Not needed by echo_core, echo_full, mocker and "
        "python.",
    )
    name: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Name that clients ask for; default: the repository or file name.",
    )
    token_secret: SecretKey | None = Field(default=None, description="Hugging Face token for gated models.")
    cache: ModelCache | None = Field(
        default=None, description="Claim that holds downloaded models, shared by the workers."
    )
    context_length: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="Longest prompt and answer together, in tokens; default: the model's own.",
    )
    chat_template: str | None = Field(
        default=None, min_length=1, max_length=65536, description="Jinja chat template instead of the model's own."
    )
    tool_call_parser: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Parser that extracts tool_calls from the output, for example llama3_json; default: none. "
        "docs/how-to/serve/tools.md has the names.",
    )
    reasoning_parser: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Parser that extracts reasoning_content from the output, for example qwen3 or deepseek_r1; "
        "default: none.",
    )


class PythonSpec(Fields):
    """User code for the engine python."""

    file: str = Field(min_length=1, max_length=1024, description="Path of the file, or its key in configMap.")
    config_map: ObjectName | None = Field(default=None, description="ConfigMap that holds the file.")
    mode: Literal["tokens", "text"] = Field(
        default="tokens", description="What the code gets and gives: tokens or text."
    )


class EnvVar(Fields):
    """An environment variable."""

    name: str = Field(min_length=1, max_length=256, description="Name of the variable.")
    value: str | None = Field(default=None, max_length=32768, description="Value of the variable.")
    value_from: dict[str, Any] | None = Field(
        default=None, max_length=8, description="Source of the value, as core/v1 EnvVarSource."
    )


class Accelerator(Fields):
    """Devices that a pod asks the device plugin for."""

    resource: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=316,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        description="Resource name of the device, for example nvidia.com/mig-1g.10gb, amd.com/gpu or "
        "gpu.intel.com/i915.",
    )
    count: int | None = Field(
        default=None,
        ge=0,
        le=64,
        description="Devices per pod; default: tensorParallelSize / nodes, 0 with a CPU engine or with resourceClaims.",
    )


class Rollout(Fields):
    """Limits while a new revision replaces the old one."""

    strategy: Literal["Rolling", "Recreate"] = Field(
        default="Rolling", description="Rolling replaces step by step; Recreate stops the old revision first."
    )
    max_surge: Share | None = Field(
        default=None,
        description="Replicas (or percent) that may exist above replicas during a rollout; default 1 with one replica.",
    )
    max_unavailable: Share | None = Field(
        default=None,
        description="Replicas (or percent) that may be missing during a rollout; default 1 with several replicas.",
    )


class Component(ServedElsewhere):
    """A group of alike workers."""

    name: str = Field(
        default="worker",
        min_length=1,
        max_length=36,
        pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$",
        description="Name, unique within the pipeline; part of the names of the pods.",
    )
    role: Role = Field(
        default=Role.AGGREGATED, description="Phase that the workers run: aggregated (both), prefill or decode."
    )
    engine: Engine = Field(description="Engine that runs the model.")
    replicas: int | None = Field(
        default=None,
        ge=0,
        le=REPLICAS,
        description="Number of workers (groups, if nodes > 1). Left out, the component follows spec.replicas, "
        "which kubectl scale and an autoscaler set.",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, le=1024, description="GPUs that share one copy of the model.")
    nodes: int = Field(
        default=1, ge=1, le=NODES, description="Pods of one worker; tensorParallelSize is spread over them."
    )
    rollout: Rollout = Field(default=Rollout(), description="How a new revision replaces the old one.")
    engine_args: dict[str, Any] = Field(
        default={}, max_length=128, description="Arguments of the engine, by the engine's own names."
    )
    kv_cache_block_size: int | None = Field(default=None, ge=1, le=4096, description=kv_block_sizes())
    python: PythonSpec | None = Field(default=None, description="User code for the engine python.")
    env: tuple[EnvVar, ...] = Field(default=(), max_length=128, description="Environment variables of the worker.")
    env_from: tuple[dict[str, Any], ...] = Field(
        default=(), max_length=16, description="Sources of environment variables, as core/v1 EnvFromSource."
    )
    resources: ResourceSpec | None = Field(default=None, description="Compute resources of the engine container.")
    accelerator: Accelerator | None = Field(default=None, description="Devices of a pod.")
    shared_memory: Quantity | None = Field(
        default=None, description="Size of /dev/shm; default: 8Gi with devices, else what the container runtime gives."
    )
    pod_template: dict[str, Any] | None = Field(
        default=None,
        max_length=4,
        description="Strategic-merge override of the pod template, as core/v1 PodTemplateSpec: metadata and spec.",
    )


class EtcdSpec(Fields):
    """The etcd to use."""

    endpoints: tuple[Annotated[str, StringConstraints(min_length=1, max_length=512)], ...] = Field(
        default=(), max_length=9, description="URLs, for example http://etcd:2379; default: the platform's."
    )
    secret: ObjectName | None = Field(
        default=None, description="Secret with username and password, or with certificates."
    )


class NatsSpec(Fields):
    """The NATS to use."""

    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="URL, for example nats://nats:4222; default: the platform's.",
    )
    secret: ObjectName | None = Field(
        default=None, description="Secret with username and password, token or certificates."
    )


class RuntimeSpec(Fields):
    """Servers that the parts talk over."""

    etcd: EtcdSpec = Field(default=EtcdSpec(), description="The etcd to use.")
    nats: NatsSpec = Field(default=NatsSpec(), description="The NATS to use.")


class PipelineSpec(Fields):
    """The wanted state."""

    namespace: str | None = Field(
        default=None,
        min_length=1,
        max_length=100,
        pattern=r"^[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
        description="Dynamo namespace; default <metadata.namespace>_<metadata.name>, on a laptop <metadata.name>.",
    )
    replicas: int = Field(
        default=1,
        ge=0,
        le=REPLICAS,
        description="Workers of each component that sets no replicas of its own; kubectl scale sets it.",
    )
    model: ModelSpec = Field(default=ModelSpec(), description="The model that the pipeline serves.")
    frontend: FrontendSpec = Field(default=FrontendSpec(), description="The OpenAI-compatible HTTP servers.")
    components: tuple[Component, ...] = Field(min_length=1, max_length=COMPONENTS, description="The workers.")
    runtime: RuntimeSpec = Field(default=RuntimeSpec(), description="The etcd and NATS that connect the parts.")
    graceful_shutdown_timeout_seconds: int | None = Field(
        default=None,
        ge=0,
        le=86400,
        description="Seconds that running streams may continue after their pod is asked to stop; set it above the "
        "longest stream. Default: the platform's, on a laptop 30.",
    )
    restart: str | None = Field(
        default=None,
        max_length=253,
        description="Any text; changing it rolls every part, for example after a secret changed.",
    )


class Metadata(BaseModel):
    """The part of Kubernetes' ObjectMeta that we read; the rest is kept as it is."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    name: str = Field(
        min_length=1, max_length=37, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", description="Name of the pipeline."
    )
    namespace: str | None = Field(default=None, min_length=1, max_length=63, description="Kubernetes namespace.")


class Condition(Fields):
    """An observed fact."""

    type: str = Field(max_length=316, description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="Why, in one word of a closed set.")
    message: str = Field(max_length=32768, description="Why, in a sentence.")
    last_transition_time: str = Field(
        max_length=64, description="When status changed last.", json_schema_extra={"format": "date-time"}
    )
    observed_generation: int | None = Field(default=None, description="Generation of the spec that it describes.")


class ComponentStatus(Fields):
    """The observed state of a component."""

    name: str = Field(max_length=36, description="Name of the component.")
    revision: str | None = Field(default=None, max_length=64, description="Revision that is wanted.")
    replicas: int = Field(default=0, description="Workers that the spec asks for.")
    updated_replicas: int = Field(default=0, description="Workers of the wanted revision that are ready.")
    ready_replicas: int = Field(default=0, description="Workers whose pods Kubernetes calls ready.")
    available_replicas: int = Field(default=0, description="Workers that every frontend can route to.")


class PipelineStatus(Fields):
    """The observed state."""

    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that the status describes."
    )
    conditions: tuple[Condition, ...] = Field(default=(), max_length=16, description="Ready, Reconciling, Stalled.")
    url: str | None = Field(default=None, max_length=WORDS_CHARACTERS, description="Where the OpenAI endpoint is.")
    model: str | None = Field(default=None, max_length=WORDS_CHARACTERS, description="Served model name.")
    namespace: str | None = Field(default=None, max_length=NAME_CHARACTERS, description="Dynamo namespace.")
    engines: str | None = Field(default=None, max_length=NAME_CHARACTERS, description="Engines, joined.")
    tensor_parallel: str | None = Field(
        default=None, max_length=NAME_CHARACTERS, description="The components' tensorParallelSize, joined."
    )
    workers: str | None = Field(default=None, max_length=64, description="Ready and desired workers, for example 2/3.")
    replicas: int | None = Field(
        default=None, description="Workers that follow spec.replicas, for the scale subresource."
    )
    selector: str | None = Field(
        default=None,
        max_length=WORDS_CHARACTERS,
        description="Label selector of those workers, for the scale subresource.",
    )
    components: tuple[ComponentStatus, ...] = Field(
        default=(), max_length=COMPONENTS, description="The components one by one."
    )
    operator: str | None = Field(
        default=None,
        max_length=WORDS_CHARACTERS,
        description="Operator installation that serves it, by namespace and lease; others leave it alone.",
    )
    term: int | None = Field(
        default=None,
        ge=0,
        le=2**31 - 1,
        description="Term of the operator's leader that wrote it; writes of earlier terms are rejected.",
    )


class DynamoPipeline(Fields):
    """A model served by workers behind an OpenAI-compatible endpoint."""

    api_version: Literal["dynamo.dev/v1alpha1"] = Field(description="Version of this schema.")
    kind: Literal["DynamoPipeline"] = Field(description="Kind of this object.")
    metadata: Metadata = Field(description="Name, namespace, labels and annotations.")
    spec: PipelineSpec = Field(description="Wanted state.")
    status: PipelineStatus | None = Field(default=None, description="Observed state; written by the operator.")

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return self.metadata.name
