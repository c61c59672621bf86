"""What can be wrong with the variables and folders that `dynamo up` is started with: rules over facts. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis.findings import Finding, Weight

_ALIKE: Final = 0.85
"""Of a misspelt name and the one that was meant."""


@dataclass(frozen=True)
class VariableFact:
    """A variable that nothing here reads, and the known one that is nearest. Its value is no fact."""

    name: str
    meant: str


@dataclass(frozen=True)
class EnvironmentFacts:
    """What the rules look at."""

    misspelt: tuple[VariableFact, ...] = ()
    host: str = ""
    """DYN_HTTP_HOST, where nobody can listen there."""
    host_error: str = ""
    shadow: str = ""
    """Another package called dynamo, which the parts of a pipeline would import in our place."""


def misspelt(names: Iterable[str], known: Collection[str]) -> tuple[VariableFact, ...]:
    """Return the names that are nearly, but not quite, known ones."""
    unknown = (name for name in sorted(names) if name not in known)
    near = ((name, difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)) for name in unknown)
    return tuple(VariableFact(name, meant[0]) for name, meant in near if meant)


def findings(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Yield what is wrong with them."""
    if facts.shadow:
        yield Finding(
            "other-dynamo", "another package called dynamo hides ours", f"{facts.shadow} is what frontends and workers "
            "would import, since they run in the file's folder",
            f"mv {facts.shadow} {facts.shadow}-aside, or move the pipeline file to another folder",
        )  # fmt: skip
    if facts.host_error:
        yield Finding(
            "bad-host", f"nobody can listen on {facts.host}", f"DYN_HTTP_HOST names it: {facts.host_error}",
            "unset DYN_HTTP_HOST, or export DYN_HTTP_HOST=127.0.0.1 (0.0.0.0 opens it to other machines)",
        )  # fmt: skip
    for variable in facts.misspelt:
        yield Finding(
            "misspelt-variable", f"nothing reads the variable {variable.name}",
            f"{variable.meant} is the nearest one that is known",
            f"export {variable.meant}=…; unset {variable.name}", Weight.WARNING,
        )  # fmt: skip
