"""What can be wrong with a pipeline file though each of its fields may be so: rules over facts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dynamo.cli.diagnosis.findings import Finding, Weight


@dataclass(frozen=True)
class FieldFact:
    """A field that a worker would refuse."""

    field: str
    pipeline: str
    problem: str


@dataclass(frozen=True)
class UpstreamFact:
    """A server that a component sends its requests to."""

    url: str
    wanted_by: str
    error: str = ""
    """Why nobody can be reached there."""


@dataclass(frozen=True)
class UpFact:
    """A pipeline that is up on this machine."""

    name: str
    file: str
    model: str
    url: str


def field_findings(fields: Iterable[FieldFact]) -> Iterator[Finding]:
    """Yield the fields that a worker would refuse."""
    for fact in fields:
        yield Finding(
            "bad-field", f"{fact.field} of {fact.pipeline} can't be used", fact.problem,
            f"correct {fact.field}, then dynamo validate FILE",
        )  # fmt: skip


def upstream_findings(upstreams: Iterable[UpstreamFact]) -> Iterator[Finding]:
    """Yield the servers that nobody listens for; they may be started later."""
    for fact in upstreams:
        if fact.error:
            yield Finding(
                "upstream-away", f"the server of {fact.wanted_by} can't be reached at {fact.url}", fact.error,
                "start it, or correct spec.components[].upstream, then dynamo validate FILE", Weight.WARNING,
            )  # fmt: skip


def name_findings(wanted: Iterable[UpFact], up: Iterable[UpFact]) -> Iterator[Finding]:
    """Yield names that a file's pipelines share with each other, or with what is up from another file."""
    running = {other.name: other for other in up}
    by_model: dict[str, UpFact] = {}
    for fact in wanted:
        other = running.get(fact.name)
        if other is not None and other.file != fact.file:
            yield Finding(
                "name-taken", f"{fact.name} is up already", f"dynamo up {other.file} runs a pipeline of that name",
                f"dynamo down {fact.name}, or give this one another metadata.name",
            )  # fmt: skip
        rivals = (known for known in running.values() if known.model == fact.model and known.name != fact.name)
        rival = by_model.setdefault(fact.model, fact)
        for same in ([rival] if rival is not fact else [])[:1] or list(rivals)[:1]:
            yield Finding(
                "same-model-name", f"{same.name} and {fact.name} both serve the name {fact.model}",
                "each answers at a URL of its own: clients of the wrong one get the other's answers",
                f"set spec.model.name of {fact.name} to another, then dynamo validate FILE", Weight.WARNING,
            )  # fmt: skip
