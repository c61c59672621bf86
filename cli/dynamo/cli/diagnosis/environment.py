"""What can be wrong with the variables and folders that `dynamo up` is started with: rules over facts. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dynamo.cli.diagnosis.findings import Finding, Weight

_ALIKE: Final = 0.85
"""Of a misspelt name and the one that was meant."""

_OF_OTHERS: Final = tuple(f"DYN_{engine}_" for engine in ("TRTLLM", "VLLM", "SGLANG"))
"""Variables of the programs that NVIDIA Dynamo has for each engine: taken by them, and by no settings class."""


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
    unreadable: tuple[str, ...] = ()
    """Why a program refuses a variable, which it names."""
    shadow: str = ""
    """Another package called dynamo, which the parts of a pipeline would import in our place."""
    proxied: str = ""
    """The variable that sends questions to this machine itself through a proxy."""
    excepted: str = ""
    """The variable of what goes through none, where it is set."""


def misspelt(names: Iterable[str], known: Collection[str]) -> tuple[VariableFact, ...]:
    """Return the names of ours that are nearly, but not quite, known ones; none where nothing is known."""
    unknown = (name for name in sorted(names) if _is_ours(name) and name not in known)
    near = ((name, difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)) for name in unknown)
    return tuple(VariableFact(name, meant[0]) for name, meant in near if meant)


def _is_ours(name: str) -> bool:
    return name.startswith("DYN_") and not name.startswith(_OF_OTHERS)


def notes(variables: Iterable[VariableFact]) -> Iterator[str]:
    """Yield what `dynamo up` says of variables that nothing reads."""
    for variable in variables:
        yield f"nothing reads the variable {variable.name}: did you mean {variable.meant}?"


def proxy_findings(facts: EnvironmentFacts) -> Iterator[Finding]:
    """Yield that clients here ask a proxy for what this machine itself serves."""
    if facts.proxied:
        before = f"${facts.excepted}," if facts.excepted else ""
        yield Finding(
            "loopback-proxied", "clients here ask a proxy for pipelines of this machine",
            f"{facts.proxied} is set, and {facts.excepted or 'NO_PROXY'} doesn't except 127.0.0.1",
            f"export {facts.excepted or 'NO_PROXY'}={before}localhost,127.0.0.1", Weight.WARNING,
        )  # fmt: skip


def _named_in(text: str) -> str:
    """Return the variable that a sentence is about."""
    match = re.search(r"\bDYN_[A-Z_]+", text)
    return match[0] if match else "of a program"


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
    named = {_named_in(text): text for text in reversed(facts.unreadable)}
    for name, text in named.items():
        yield Finding(
            "bad-variable", f"the variable {name} can't be read", text, f"unset {name}, or export {name}=… corrected"
        )
    for variable in facts.misspelt:
        yield Finding(
            "misspelt-variable", f"nothing reads the variable {variable.name}",
            f"{variable.meant} is the nearest one that is known",
            f"export {variable.meant}=…; unset {variable.name}", Weight.WARNING,
        )  # fmt: skip
