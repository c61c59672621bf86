"""What can be wrong with GPUs: what pipelines ask for, what a machine or the nodes of a cluster have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dynamo.cli.diagnosis.findings import Finding, Weight

if TYPE_CHECKING:
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

NVIDIA: Final = "nvidia.com/gpu"
_CARDS_SHOWN: Final = 8
_PLUGIN: Final = (
    "helm upgrade -i nvdp nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin "
    "-n nvidia-device-plugin --create-namespace"
)


@dataclass(frozen=True)
class Demand:
    """What pipelines ask for of one kind of device."""

    resource: str
    per_pod: int
    """Of the pod that asks for most."""
    total: int
    wanted_by: str
    """The pipeline that asks for most."""


@dataclass(frozen=True)
class Card:
    """One GPU, as nvidia-smi describes it; its memory in MiB."""

    name: str
    driver: str
    total: int
    free: int


@dataclass(frozen=True)
class GpuFact:
    """What device files and nvidia-smi of a machine say."""

    devices: int = 0
    driver: bool = False
    error: str = ""
    cards: tuple[Card, ...] = ()


CARD_FIELDS: Final = "name,driver_version,memory.total,memory.free"
"""Asked of nvidia-smi, and read by `cards_of`."""


def cards_of(answer: str) -> tuple[Card, ...]:
    """Read nvidia-smi's CSV without head and units; a card that tells no memory (`[N/A]`) is left out."""
    rows = ([cell.strip() for cell in line.split(",")] for line in answer.splitlines())
    return tuple(
        Card(name, driver, int(total), int(free))
        for name, driver, total, free in (row for row in rows if len(row) == len(CARD_FIELDS.split(",")))
        if total.isdecimal() and free.isdecimal()
    )


def card_text(card: Card) -> str:
    """Return a card in a few words."""
    return f"{card.name}, {card.free / 1024:.1f} of {card.total / 1024:.1f} GiB free, driver {card.driver}"


def looked_at(gpu: GpuFact) -> str:
    """Return what the report says of GPUs that were looked at."""
    more = f"; {len(gpu.cards) - _CARDS_SHOWN} more" if len(gpu.cards) > _CARDS_SHOWN else ""
    return f"GPU ({'; '.join(map(card_text, gpu.cards[:_CARDS_SHOWN]))}{more})" if gpu.cards else "GPU"


@dataclass(frozen=True)
class NodeDevices:
    """What the nodes of a cluster have of one kind of device."""

    resource: str
    labelled: int = 0
    """Nodes whose labels say that they have one."""
    allocatable: int = 0
    largest: int = 0
    """Of the node that offers most."""


def demand_of(pipelines: Iterable[DynamoPipeline], *, here: bool = False) -> tuple[Demand, ...]:
    """Return what pipelines ask for, a line for each kind of device.

    `here`: on this machine, where a user's own Python file runs without a GPU unless it asks for one.
    """
    from dynamo.operator.plan.plan import devices_of

    asked: dict[str, Demand] = {}
    for pipeline in pipelines:
        for component in pipeline.spec.components:
            devices = devices_of(component)
            if devices is None or (here and component.engine == "python" and component.accelerator is None):
                continue
            resource, count = devices
            replicas = pipeline.spec.replicas if component.replicas is None else component.replicas
            before = asked.get(resource, Demand(resource, 0, 0, pipeline.name))
            most, by = max((before.per_pod, before.wanted_by), (count, pipeline.name), key=lambda pair: pair[0])
            asked[resource] = Demand(resource, most, before.total + count * replicas * component.nodes, by)
    return tuple(asked.values())


def machine_findings(gpu: GpuFact, demands: Iterable[Demand]) -> Iterator[Finding]:
    """Yield what is wrong with the GPUs of this machine."""
    wanted = next((demand for demand in demands if demand.resource == NVIDIA), None)
    weight = Weight.ERROR if wanted else Weight.WARNING
    if gpu.devices and gpu.error:
        yield Finding(
            "gpu-driver", "the GPU's driver doesn't answer", gpu.error,
            "nvidia-smi, and install the driver of its version again", weight,
        )  # fmt: skip
    elif gpu.driver and not gpu.devices:
        yield Finding(
            "gpu-hidden", "the GPUs of this machine can't be seen here",
            "its driver is loaded, and there is no /dev/nvidia0: a container was started without them",
            "docker run --gpus all …, or sudo nvidia-modprobe -u -c=0", weight,
        )  # fmt: skip
    elif wanted and not gpu.devices:
        yield Finding(
            "no-gpu", f"{wanted.wanted_by} wants a GPU, and this machine has none",
            f"there is no /dev/nvidia0, and a worker asks for {wanted.per_pod}",
            "a CPU engine: spec.components[].engine llamacpp; or dynamo apply FILE to a cluster with GPUs",
            Weight.WARNING,
        )  # fmt: skip
    elif wanted and wanted.per_pod > gpu.devices:
        yield Finding(
            "too-few-gpus", f"{wanted.wanted_by} wants more GPUs than this machine has",
            f"a worker asks for {wanted.per_pod}, and there are {gpu.devices}",
            f"lower spec.components[].tensorParallelSize to {gpu.devices}, or accelerator.count",
        )  # fmt: skip
    elif wanted:
        yield from _full(gpu.cards, wanted)


def _full(cards: Sequence[Card], wanted: Demand) -> Iterator[Finding]:
    """Yield a warning where too few cards have the half of their memory free: engines take nearly all of it."""
    taken = sorted((card for card in cards if 2 * card.free < card.total), key=lambda card: card.free)
    if not taken or len(cards) - len(taken) >= wanted.per_pod:
        return
    share = int(100 * taken[0].free / taken[0].total) / 100
    yield Finding(
        "gpu-memory", f"the GPU that {wanted.wanted_by} wants is in use", card_text(taken[0]),
        "nvidia-smi, and end what takes it; or give vLLM less: spec.components[].engineArgs"
        f" gpu-memory-utilization: {share}", Weight.WARNING,
    )  # fmt: skip


def cluster_findings(nodes: Iterable[NodeDevices], demands: Iterable[Demand]) -> Iterator[Finding]:
    """Yield what is wrong with the devices of a cluster's nodes."""
    asked = {demand.resource: demand for demand in demands}
    for offered in nodes:
        demand = asked.get(offered.resource)
        weight = Weight.ERROR if demand else Weight.WARNING
        if offered.labelled and not offered.allocatable:
            yield Finding(
                "no-device-plugin", "pods can't get the GPUs of the nodes",
                f"{offered.labelled} nodes have one, and none offers {offered.resource}: the device plugin doesn't run",
                _PLUGIN, weight,
            )  # fmt: skip
        elif demand and not offered.allocatable:
            yield Finding(
                "no-gpu-nodes", "the cluster has no GPU node",
                f"{demand.wanted_by} asks for {offered.resource}, and no node offers it",
                "add a GPU node, or use a CPU engine: spec.components[].engine llamacpp (dynamo validate FILE)",
            )  # fmt: skip
        elif demand:
            yield from _too_few(offered, demand)


def _too_few(offered: NodeDevices, demand: Demand) -> Iterator[Finding]:
    if demand.per_pod > offered.largest:
        yield Finding(
            "gpus-of-a-node", f"no node has as many GPUs as a pod of {demand.wanted_by} wants",
            f"it asks for {demand.per_pod} {offered.resource}, and the largest node offers {offered.largest}",
            f"spread a worker: spec.components[].nodes, or lower tensorParallelSize to {offered.largest}",
        )  # fmt: skip
    elif demand.total > offered.allocatable:
        yield Finding(
            "too-few-gpus", "the cluster has fewer GPUs than are asked for",
            f"{demand.total} {offered.resource} are asked for, and all nodes together offer {offered.allocatable}",
            f"add GPU nodes, or: kubectl scale dp/{demand.wanted_by} --replicas=N", Weight.WARNING,
        )  # fmt: skip
