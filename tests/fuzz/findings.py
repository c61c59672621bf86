"""What a run found: `Finding`, and the folder that keeps each with the command that does it again."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = ROOT / "fuzz-found"
"""git ignores it."""
RAISED: Final = "it raised "
"""What begins a sentence that names an exception, and ends with its place."""
_NUMBERS: Final = re.compile(r"\d+(\.\d+)?")
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")


def environment() -> dict[str, str]:
    """Return that of a process of ours: it finds the tests, too, and panics of Rust say one line."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**os.environ, "PYTHONPATH": path, "RUST_BACKTRACE": "0"}


@dataclass(frozen=True)
class Finding:
    """Something that broke a bar."""

    target: str
    case: str
    violations: Sequence[str]
    replay: str
    """Arguments of `make fuzz`."""
    data: bytes = b""
    """What was sent, where it was bytes."""

    @property
    def signature(self) -> str:
        """Alike for what is likely one defect: an exception's place, else the case's kind and what was broken."""
        said = {_QUOTED.sub("", _NUMBERS.sub("", text))[:60] for text in self.violations}
        if raised := [text.rpartition(" at ")[2] for text in self.violations if text.startswith(RAISED)]:
            return f"{self.target} {raised}"
        return f"{self.target} {_NUMBERS.sub('', self.case)[:60]} {sorted(said)}"

    def lines(self) -> list[str]:
        """What is printed."""
        return [f"{self.target}: {self.case}", *(f"  {text}" for text in self.violations), f"  {self.command}"]

    @property
    def command(self) -> str:
        return f'make fuzz ARGS="{self.replay}"'


@dataclass
class Kept:
    """Findings, each sort of them once, also as files."""

    say: Callable[[str], None]
    folder: Path = FOUND
    findings: list[Finding] = field(default_factory=list)
    again: int = 0
    """Those that were like one before."""
    _known: set[str] = field(default_factory=set)

    def add(self, finding: Finding) -> None:
        """Keep it, and say it, unless it was here before."""
        self._write(finding)
        if finding.signature in self._known:
            self.again += 1
            return
        self._known.add(finding.signature)
        self.findings.append(finding)
        for line in finding.lines():
            self.say(line[:400])

    def _write(self, finding: Finding) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{finding.target}-{hashlib.blake2b(finding.replay.encode(), digest_size=6).hexdigest()}"
        (self.folder / f"{name}.txt").write_text("\n".join([*finding.lines(), ""]), errors="replace")
        if finding.data:
            (self.folder / f"{name}.bin").write_bytes(finding.data)
