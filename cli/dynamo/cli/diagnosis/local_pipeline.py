"""Why a pipeline of this machine doesn't serve: by its parts, their last words, and what it stands on. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dynamo.cli.diagnosis.findings import Finding, Weight
from dynamo.cli.diagnosis.servers import ServerFact
from dynamo.runtime.http.system_server import BUS_AWAY

LEAST_STATE_DISK: Final = 16 << 20
"""Bytes free where logs and states are written; below, `dynamo ps` and `dynamo logs` tell what was."""
MOST_RESTARTS: Final = 1
"""More in the last minutes are a loop."""
LOOP_SECONDS: Final = 600.0
LONG_START: Final = 5.0
"""Of a Python file that loads nothing."""


@dataclass(frozen=True)
class LocalPart:
    """One part of a local pipeline."""

    name: str
    state: str
    reason: str = ""
    restarts: int = 0
    last_error: str = ""
    kind: str = ""
    """`frontend`, `worker`, `node` or `infra`."""
    stopped: int | None = None
    """Its process, where a signal has stopped that."""
    ended: str = ""
    """Why the process before this one ended."""
    since_seconds: float = 0.0
    """How long it has been in its state."""
    pid: int | None = None
    program: str = ""
    """The Python file that it runs."""
    upstream: str = ""
    """Why the server that it sends requests to can't be reached."""


@dataclass(frozen=True)
class LocalFacts:
    """One pipeline of this machine."""

    name: str
    file: str
    alive: bool
    parts: tuple[LocalPart, ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()
    """Why it ended, where it could not serve: parts (empty: all of it), and what they said."""
    stopped_by_hand: bool = False
    up_pid: str = ""
    """The process of its `dynamo up`."""
    up_stopped: bool = False
    """A signal has stopped that process."""
    unreadable: str = ""
    """The file of its state, where it can't be read though its `dynamo up` runs."""
    state_folder: str = ""
    state_free_bytes: int = 1 << 40
    servers: tuple[ServerFact, ...] = ()
    """etcd and NATS that it uses."""
    own_servers: frozenset[str] = field(default_factory=frozenset)
    """Those that its `dynamo up` has started: `etcd`, `nats`."""

    @property
    def again(self) -> str:
        """Return what starts it with a corrected file."""
        return f"dynamo down {self.name}; dynamo up {self.file}" if self.alive else f"dynamo up {self.file}"


_FIELD: Final = "correct {what} in {file}, then {again}"
_MENDS: Final = (
    ("chat-template", r"chat template", _FIELD.replace("{what}", "spec.model.chatTemplate")),
    ("engine-argument", r"unknown [\w.]+ argument|argument '[\w-]+' (must|can only)|engine-args",
     _FIELD.replace("{what}", "spec.components[].engineArgs")),
    ("other-dynamo", r"No module named '?dynamo\b",
     "mv dynamo dynamo-aside in the folder of {file}, and unset PYTHONPATH: a package called dynamo hides ours; "
     "then {again}"),
    ("bad-variable", r"env var: '(?P<variable>\w+)'|(?P<other>\bDYN_[A-Z_]+): ",
     "unset {variable}{other}, or correct it, then {again}"),
    ("bad-variable", r"--(?P<flag>tls-[a-z-]+|api-keys-file)\b", "correct the file that --{flag} names, then {again}"),
    ("bad-program", r"--python-file", "correct spec.components[].python.file in {file}, then {again}"),
    ("server-ends", r"the server \S+ ended",
     "dynamo logs {name} --tail 50; correct spec.components[].command in {file}, then {again}"),
    ("module-missing", r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
     "python -m pip install {module} (or the package that has it), then {again}"),
    ("bad-program", r"(?P<place>[\w.-]+\.py:\d+)(:| in )",
     "correct {place} (spec.components[].python.file), then {again}"),
    ("engine-missing", r"isn't installed|is not installed|No module named", "dynamo doctor {file} names the package"),
    ("disk-full", r"No space left|disk is full", "dynamo clean"),
    ("no-address", r"[Cc]an.?t (listen|assign)|Cannot assign requested address",
     "unset DYN_HTTP_HOST, or dynamo up {file} --http-host 127.0.0.1"),
    ("port-taken", r"[Aa]ddress already in use|port \d+ is in use", "dynamo up {file} --http-port 0"),
    ("hub-answers-html", r"JSONDecodeError|in the hub's place",
     "curl -I $HF_ENDPOINT shows what answers in the hub's place; then correct HF_ENDPOINT or HTTPS_PROXY"),
    ("hub-address", r"HF_ENDPOINT lacks|missing an 'https?://'", "export HF_ENDPOINT=https://…, then {again}"),
    ("bad-token", r"HF_TOKEN|\bgated\b", "export HF_TOKEN=…"),
    ("hub-unreachable", r"the way to the hub|HF_HUB_OFFLINE",
     "dynamo models lists what lies here; unset HF_HUB_OFFLINE, or correct HF_ENDPOINT, then {again}"),
    ("out-of-memory", r"[Oo]ut of memory|SIGKILL|killed by signal 9",
     "lower spec.model.contextLength or spec.replicas in {file}, or take a smaller model, then {again}; "
     "sudo dmesg | grep -i 'killed process' says whether memory ran out"),
    ("server-away", r"reach (etcd|NATS) at|waiting for (etcd|NATS)",
     "start it, or unset ETCD_ENDPOINTS NATS_SERVER, then {again} starts its own"),
    ("engine-too-old", r"unknown model architecture",
     "python -m pip install -U xllamacpp, or correct spec.model.source or engine in {file}; then {again}"),
    ("model-broken", r"no model at|no model folder|GGUF|can't be used",
     "correct spec.model.source in {file}: dynamo validate {file}"),
)  # fmt: skip
"""Code, what is said, the command that mends it: the first that matches is the cause."""


def local_findings(facts: LocalFacts) -> Iterator[Finding]:
    """Yield why a pipeline of this machine doesn't serve."""
    for rule in _RULES if facts.alive else (_ended,):
        yield from rule(facts)


def _ended(facts: LocalFacts) -> Iterator[Finding]:
    for part, reason in facts.reasons:
        rest = f"dynamo logs {part} --tail 50 has the rest; then dynamo up {facts.file}"
        code, mend = _known(facts, reason, "not-up", rest if part else f"dynamo up {facts.file}")
        yield Finding(code, f"{facts.name} isn't up", f"{part}: {reason}" if part else reason, mend)
    if facts.reasons:
        return
    if facts.stopped_by_hand:
        yield Finding(
            "not-up",
            f"{facts.name} isn't up",
            "dynamo down, Ctrl-C or a signal has ended it",
            f"dynamo up {facts.file}",
        )
        return
    failed = next((part.last_error for part in facts.parts if part.last_error), "")
    code, mend = _known(facts, failed, "not-up", f"dynamo up {facts.file}")
    yield Finding(code, f"{facts.name} isn't up", failed or "its dynamo up was killed, or has not begun", mend)


def _itself(facts: LocalFacts) -> Iterator[Finding]:
    """Yield what is wrong with its `dynamo up`, without which nothing below is true."""
    if facts.state_free_bytes < LEAST_STATE_DISK:
        yield Finding(
            "disk-full", f"the disk of {facts.state_folder} is full",
            f"{facts.state_free_bytes >> 20} MiB are free: {facts.name} writes neither logs nor its state there",
            "dynamo clean, or free space there; then export XDG_STATE_HOME=FOLDER on another disk",
        )  # fmt: skip
    if facts.up_stopped:
        yield Finding(
            "stopped", f"the dynamo up of {facts.name} is stopped",
            f"a signal has stopped its process {facts.up_pid}: nothing that ends is started again",
            f"kill -CONT {facts.up_pid}",
        )  # fmt: skip
    if facts.unreadable:
        yield Finding(
            "state-broken", f"the state of {facts.name} can't be read",
            f"{facts.unreadable} is missing or damaged, and its dynamo up (pid {facts.up_pid}) runs",
            f"kill {facts.up_pid}; then dynamo up {facts.file}",
        )  # fmt: skip


def _servers(facts: LocalFacts) -> Iterator[Finding]:
    stopped = {part.name for part in facts.parts if part.stopped is not None}
    ending = {part.name for part in facts.parts if part.kind == "infra" and (part.restarts or part.state != "ready")}
    for server in facts.servers:
        part = server.kind.lower()
        if not (server.error or server.other or server.sick) or part in stopped | ending:
            continue
        variable = "ETCD_ENDPOINTS" if part == "etcd" else "NATS_SERVER"
        pid = next((p.pid for p in facts.parts if p.name == part and p.pid is not None), None)
        mend = (
            f"kill -9 {pid}, and dynamo up starts it again" if part in facts.own_servers and pid is not None
            else f"start it again there; or unset {variable}, then {facts.again} starts one of its own"
        )  # fmt: skip
        yield Finding(
            "server-away", f"{server.kind} of {facts.name} doesn't answer at {server.url}",
            server.error or server.other or server.sick, mend,
        )  # fmt: skip


def _no_workers(facts: LocalFacts) -> Iterator[Finding]:
    kinds = {part.kind for part in facts.parts}
    if "frontend" in kinds and "worker" not in kinds:
        yield Finding(
            "no-workers", f"{facts.name} has no workers", "spec.replicas, or a component's, is 0: requests find nobody",
            f"set spec.replicas to 1 or more in {facts.file}, then {facts.again}",
        )  # fmt: skip


def _parts(facts: LocalFacts) -> Iterator[Finding]:
    for part in facts.parts:
        if (finding := _loop(facts, part) or _of_part(facts, part)) is not None:
            yield finding


def _loop(facts: LocalFacts, part: LocalPart) -> Finding | None:
    """Say that a part ends again and again, whatever it does at this moment."""
    if part.restarts <= MOST_RESTARTS or not part.ended or part.since_seconds > LOOP_SECONDS:
        return None
    code, mend = _known(facts, part.ended, "crash-loop", f"dynamo logs {facts.name}/{part.name} --tail 50")
    if code == "out-of-memory" and part.kind in ("frontend", "infra"):  # it holds no model
        code, mend = (
            "killed",
            "sudo dmesg | grep -i 'killed process' says whether memory ran out",
        )
    return Finding(code, f"{part.name} of {facts.name} has ended {part.restarts} times", part.ended, mend)


def _of_part(facts: LocalFacts, part: LocalPart) -> Finding | None:
    logs = f"dynamo logs {facts.name}/{part.name} --tail 50"
    if part.state == "ready":
        what = f"{part.name} of {facts.name} serves, and something is amiss"
        return Finding("amiss", what, part.reason, logs, Weight.WARNING) if part.reason else None
    if part.stopped is not None:
        return Finding("stopped", f"{part.name} of {facts.name} is stopped", part.reason, f"kill -CONT {part.stopped}")
    if part.state == "notready":
        return _away(facts, part, logs)
    if part.state == "starting" and not part.restarts:
        if part.upstream:
            return Finding(
                "upstream-away", f"{part.name} of {facts.name} waits for its server", part.upstream,
                f"start it, or correct spec.components[].upstream in {facts.file}, then {facts.again}",
            )  # fmt: skip
        if part.program and part.since_seconds > LONG_START:
            return Finding(
                "program-starts", f"{part.name} of {facts.name} is starting for {part.since_seconds:.0f} s",
                f"{part.program} has not come to its end: what stands outside of its functions runs first",
                f"correct {part.program} (spec.components[].python.file), then {facts.again}", Weight.WARNING,
            )  # fmt: skip
        return Finding(
            "starting", f"{part.name} of {facts.name} is starting",
            part.last_error or part.reason or "it loads its model",
            f"dynamo logs {facts.name}/{part.name} -f", Weight.WARNING,
        )  # fmt: skip
    code, mend = _known(facts, f"{part.reason} {part.last_error}", "crash", logs)
    return Finding(
        code, f"{part.name} of {facts.name} doesn't serve", part.reason or part.last_error or f"it is {part.state}",
        mend,
    )  # fmt: skip


def _away(facts: LocalFacts, part: LocalPart, logs: str) -> Finding:
    if BUS_AWAY in part.reason:
        return Finding(
            "bus-away", f"{part.name} of {facts.name} can't reach NATS", part.reason,
            f"dynamo logs {facts.name}/nats --tail 20; start the NATS that NATS_SERVER names, or unset NATS_SERVER, "
            f"then {facts.again}",
        )  # fmt: skip
    said = f"{part.reason}; {part.last_error}" if part.last_error else part.reason
    if "has held the event loop" in part.last_error:
        place = re.match(r"[\w./-]+\.py:\d+", part.last_error)
        return Finding(
            "loop-blocked", f"{part.name} of {facts.name} is blocked", f"{part.last_error} ({part.reason})",
            f"await there, or asyncio.to_thread: correct {place[0] if place else 'the file'}, then {facts.again}",
        )  # fmt: skip
    if part.kind == "frontend":
        return Finding("frontend-silent", f"{part.name} of {facts.name} doesn't answer", said, logs)
    return Finding("not-routed", f"{part.name} of {facts.name} gets no requests", said, logs)


def _known(facts: LocalFacts, text: str, code: str, mend: str) -> tuple[str, str]:
    """Return the code of what a text says, and the command that mends it; those given where it says nothing known."""
    for known, pattern, command in _MENDS:
        if match := re.search(pattern, text):
            return known, command.format(file=facts.file, name=facts.name, again=facts.again, **_parts_of(match))
    return code, mend


def _parts_of(match: re.Match[str]) -> dict[str, str]:
    """Return what a pattern has named, with nothing in the place of what it hasn't."""
    return {name: value or "" for name, value in match.groupdict().items()}


_RULES: Final[tuple[Callable[[LocalFacts], Iterator[Finding]], ...]] = (_itself, _servers, _no_workers, _parts)
