"""`dynamo up` as one object: a file's pipelines from their locks to the last process's end.

Order of life: locks, ports, etcd and NATS, then frontends and workers side by side; end in
the opposite order. Decisions are in `process_specs.py` and `process_lifecycle.py`; what the user sees is
`display.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dynamo.cli.diagnosis.machine import preflight
from dynamo.cli.local import infra_servers, next_steps
from dynamo.cli.local.display import Display
from dynamo.cli.local.facts.fields import fields
from dynamo.cli.local.facts.machine import engines, who_listens
from dynamo.cli.local.facts.models import models
from dynamo.cli.local.infra_servers import without_password
from dynamo.cli.local.infrastructure import Footing, UpError, assign_ports, demand_port, find_footing
from dynamo.cli.local.log_files import LogFile, Repeats, Severity
from dynamo.cli.local.ports import PortPicker, is_free
from dynamo.cli.local.process_lifecycle import State
from dynamo.cli.local.process_specs import (
    INFRA,
    Ground,
    PartSpec,
    files_of,
    local_notes,
    local_problems,
    parts_of,
)
from dynamo.cli.local.state import (
    FRONTEND,
    NODE,
    RUN_VARIABLE,
    WORKER,
    Ending,
    HeldError,
    PipelineState,
    RunState,
    is_running,
    refused,
    write_ending,
)
from dynamo.cli.local.supervisor import Part, Probe, Supervisor, part_state
from dynamo.cli.local.verdicts import Seen, can_serve, hopeless, should_greet
from dynamo.operator.api.v1alpha1 import DynamoPipeline, RuntimeSpec
from dynamo.operator.plan.plan import LOCAL_GRACE_SECONDS, Environment, plan
from dynamo.operator.plan.workload import Plan
from dynamo.runtime.process.printable import visible

INFRA_READY_WITHIN = 30.0
_REFRESH_EVERY, _REST_EVERY = 0.1, 0.5
_SHOW_ORDER = (INFRA, FRONTEND, WORKER, NODE)
_STOP_ORDER = ((FRONTEND,), (WORKER, NODE), (INFRA,))


@dataclass(frozen=True)
class Options:
    """Command line of `dynamo up`, understood."""

    file: Path
    home: Path
    http_host: str = "127.0.0.1"
    http_port: int | None = None
    verbose: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass
class _Pipeline:
    """One document of the file, while it runs."""

    wanted: DynamoPipeline
    plan: Plan
    state: PipelineState
    record: RunState
    servable_since: float = 0.0
    greeted: bool = False


class FileRun:
    """One `dynamo up FILE`."""

    def __init__(self, options: Options, pipelines: Sequence[DynamoPipeline], display: Display) -> None:
        self._options, self._wanted, self._display = options, pipelines, display
        self._pick_port = PortPicker()
        self._id = secrets.token_hex(8)
        self._pipelines: list[_Pipeline] = []
        environment = {**options.environment, RUN_VARIABLE: self._id, "PYTHONUNBUFFERED": "1"}
        folder = options.file.resolve().parent
        self._supervisor = Supervisor(environment, folder, self._on_log, self._on_change)
        self._signals = 0
        self._exit_code = 0
        self._write_due = False
        self._repeats = Repeats()
        self._held: set[str] = set()
        self._reasons: dict[str, str] = {}
        """Of the parts that ended the run, by their labels."""
        self._footing: Footing

    async def run(self) -> int:
        """Run everything until a signal, or until nothing is left to serve; returns the exit code."""
        with self._signals_handled(), contextlib.ExitStack() as held:
            try:
                return await self._run(held)
            except UpError as error:
                self._reasons = {"": str(error)}
                raise
            finally:
                self._keep_ending()
                self._display.close()

    async def _run(self, held: contextlib.ExitStack) -> int:
        self._check()
        states = [held.enter_context(self._hold(pipeline.name)) for pipeline in self._wanted]
        ports = self._ports()
        await self._supervisor.open()
        refresh = asyncio.ensure_future(self._refresh())
        try:
            environment = await self._stand_up_infra(states[0])
            if not self._signals:
                self._start_pipelines(states, ports, environment)
                await self._serve()
            await self._stop_in_order()
            self._repeat_reasons()
            return self._exit_code
        finally:
            refresh.cancel()
            await self._supervisor.close()

    # -- before anything starts

    def _check(self) -> None:
        problems = []
        for pipeline in self._wanted:
            drafted = plan(pipeline, Environment(("",), "", local=True))
            problems += local_problems(pipeline, drafted, self._options.environment)
        folder = self._options.file.resolve().parent
        here = models(self._wanted, folder, self._options.environment)
        problems += preflight(engines(self._wanted), here, fields(self._wanted, folder))
        if len({p.name for p in self._wanted}) < len(self._wanted):
            problems.append("metadata.name: two pipelines have one name, and there are no Kubernetes namespaces here")
        if problems:
            raise UpError("\n".join(f"{self._options.file}: {problem}" for problem in problems))
        for note in (note for pipeline in self._wanted for note in local_notes(pipeline)):
            self._display.say(f"note: {note}")

    def _ports(self) -> list[tuple[int, ...]]:
        host = self._options.http_host
        ports = assign_ports(self._wanted, self._options.http_port, lambda port: is_free(port, host))
        for port in (port for group in ports for port in group):
            demand_port(host, port, lambda taken: who_listens(self._options.home, taken))
        # Picked here and not by the frontend, so that its URL outlives a restart.
        return [tuple(port or self._pick_port() for port in group) for group in ports]

    @contextlib.contextmanager
    def _hold(self, name: str) -> Iterator[PipelineState]:
        try:
            state = PipelineState.acquire(self._options.home, name, str(self._options.file))
        except HeldError as error:
            raise UpError(
                f"{name} is up already: `dynamo up {error.file}` runs it (pid {error.pid}). "
                f"Stop that with Ctrl-C or `kill {error.pid}`, or give this pipeline another name"
            ) from None
        except OSError as error:
            why = refused(error, self._options.home / name)
            raise UpError(f"can't write the state of {name} to {why}") from None
        self._held.add(name)
        try:
            yield state
        finally:
            state.release()

    # -- etcd and NATS

    async def _stand_up_infra(self, state: PipelineState) -> Environment:
        """Start what nobody names, check what somebody does."""
        self._footing = await find_footing(
            self._wanted, self._options.environment, state.folder / "data", self._pick_port
        )
        for note in self._footing.notes:
            self._display.say(note)
        (state.folder / "data").mkdir(parents=True, exist_ok=True, mode=0o700)
        for server in self._footing.servers:
            self._add_server(server, state)
        await self._infra_ready()
        etcd = tuple(self._footing.etcd.split(","))
        return Environment(
            etcd,
            self._footing.nats,
            local=True,
            http_host=self._options.http_host,
            grace_seconds=LOCAL_GRACE_SECONDS,
        )

    def _add_server(self, server: infra_servers.Server, state: PipelineState) -> None:
        spec = PartSpec(
            server.name,
            INFRA,
            self._wanted[0].name,
            server.name,
            server.argv,
            ports=(("client", server.port),),
            grace=10.0,
        )
        self._start(spec, server.name, state, server.probe)

    async def _infra_ready(self) -> None:
        supervisor = self._supervisor

        def settled() -> bool:
            return bool(self._signals) or all(part.life.settled for part in supervisor.parts)

        in_time = await supervisor.until(settled, INFRA_READY_WITHIN)
        broken = [part for part in supervisor.parts if part.state is not State.READY]
        if broken and not self._signals:
            said = broken[0].note or broken[0].last_words
            why = said if in_time else f"not ready after {INFRA_READY_WITHIN:g} s; {said}"
            raise UpError(f"{broken[0].label} does not start: {why}")

    # -- pipelines

    def _start_pipelines(
        self, states: Sequence[PipelineState], ports: Sequence[tuple[int, ...]], environment: Environment
    ) -> None:
        for wanted, state, http_ports in zip(self._wanted, states, ports, strict=True):
            shared = wanted.model_copy(update={"spec": wanted.spec.model_copy(update={"runtime": RuntimeSpec()})})
            planned = plan(shared, environment)
            record = self._record(wanted, planned)
            self._pipelines.append(_Pipeline(wanted, planned, state, record))
            ground = Ground(http_ports, state.folder / "files", self._pick_port)
            self._write_files(planned, ground.files)
            for spec in parts_of(planned, ground):
                label = spec.name if len(self._wanted) == 1 else f"{wanted.name}/{spec.name}"
                self._start(spec, label, state, None)

    def _record(self, wanted: DynamoPipeline, planned: Plan) -> RunState:
        """Return what `dynamo ps` shows of a pipeline, before its parts."""
        return RunState(
            run=self._id,
            pid=os.getpid(),
            started=time.time(),
            file=str(self._options.file.resolve()),
            pipeline=wanted.name,
            namespace=planned.namespace,
            model=planned.model,
            etcd=without_password(self._footing.etcd),
            nats=without_password(self._footing.nats),
        )

    def _write_files(self, planned: Plan, folder: Path) -> None:
        for name, content in files_of(planned).items():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / name).write_text(content, encoding="utf-8")

    def _start(self, spec: PartSpec, label: str, state: PipelineState, probe: Probe | None) -> None:
        log = LogFile(state.folder / "logs" / f"{spec.name}.log")
        self._supervisor.start(self._supervisor.add(spec, label, log, probe))

    async def _serve(self) -> None:
        """Serve until a signal, or until nothing can serve any more."""
        supervisor = self._supervisor
        while not self._signals:
            for pipeline in self._pipelines:
                if not pipeline.greeted and self._is_due(pipeline):
                    pipeline.greeted = True
                    await self._greet(pipeline)
            if all(hopeless(self._seen(pipeline)) for pipeline in self._pipelines):
                self._exit_code = 1
                self._reasons = {p.label: visible(p.note) for p in supervisor.parts if p.state is State.FAILED}
                self._display.say("nothing is left that could serve: stopping")
                return
            await supervisor.next_change()

    def _of(self, pipeline: _Pipeline, *kinds: str) -> list[Part]:
        return [p for p in self._supervisor.parts if p.spec.pipeline == pipeline.wanted.name and p.spec.kind in kinds]

    def _seen(self, pipeline: _Pipeline) -> list[Seen]:
        parts = self._of(pipeline, FRONTEND, WORKER)
        return [Seen(part.spec.kind, part.spec.component, part.state) for part in parts]

    def _is_due(self, pipeline: _Pipeline) -> bool:
        """Tell whether to greet now."""
        parts = self._seen(pipeline)
        if not can_serve(parts):
            return False
        pipeline.servable_since = pipeline.servable_since or time.monotonic()
        return should_greet(parts, time.monotonic() - pipeline.servable_since)

    async def _greet(self, pipeline: _Pipeline) -> None:
        frontend = next(p for p in self._of(pipeline, FRONTEND) if p.state is State.READY)
        url = next_steps.reachable_url(str(frontend.announced.get("url", "")))
        served = await next_steps.served_model(url, pipeline.plan.model, lambda: bool(self._signals))
        pipeline.record.url, pipeline.record.model = url, served.name
        workers = self._of(pipeline, WORKER)
        counts = (sum(part.state is State.READY for part in workers), len(workers))
        for line in next_steps.lines(served, url, counts):
            self._display.say(line)
        self._write_soon()

    # -- the end

    async def _stop_in_order(self) -> None:
        """Stop frontends first, so that no request meets a missing worker; the servers last."""
        parts = self._supervisor.parts
        for kinds in _STOP_ORDER:
            ending = [p for p in reversed(parts) if p.spec.kind in kinds and not p.life.over]
            if ending:
                names = ", ".join(part.label for part in reversed(ending))
                self._display.say(f"stopping: waiting for {names} (Ctrl-C again ends everything now)")
                await self._supervisor.stop(ending)

    def _keep_ending(self) -> None:
        """Keep why it ended for `dynamo doctor NAME`; what another `dynamo up` runs is its own to tell."""
        for name in (pipeline.name for pipeline in self._wanted):
            folder = self._options.home / name
            reasons = {
                part: why for part, why in self._reasons.items() if "/" not in part or part.startswith(f"{name}/")
            }
            if name in self._held or not is_running(folder):
                write_ending(folder, Ending(str(self._options.file.resolve()), reasons or dict(self._reasons)))

    def _repeat_reasons(self) -> None:
        """Say last why nothing served: what the parts said as they ended has scrolled away."""
        if self._exit_code == 1 and not self._signals:
            for part, reason in self._reasons.items():
                self._display.say(f"error: {part}: {reason}\n  its log: dynamo logs {part}")

    @contextlib.contextmanager
    def _signals_handled(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handled = {signal.SIGINT: 130, signal.SIGTERM: 0}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
            handled[signal.SIGHUP] = 0
        for number, code in handled.items():
            loop.add_signal_handler(number, self._on_signal, code)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)

    def _on_signal(self, code: int) -> None:
        self._signals += 1
        if self._signals == 1:
            self._exit_code = code
        else:
            self._exit_code = self._exit_code or code
            self._display.say("ending everything now")
            self._supervisor.kill_all()
        self._supervisor.wake()

    # -- telling

    def _on_log(self, part: Part, text: str, level: Severity) -> None:
        if self._options.verbose or (level > Severity.INFO and self._worth_showing(part, text)):
            self._display.log(part.label, text, level)

    def _worth_showing(self, part: Part, text: str) -> bool:
        """Tell whether to show a line: while things end, and of the servers, only we speak unless asked for more.

        Last words stand in the status.
        """
        ours = not self._signals and part.spec.kind != INFRA and not text.startswith("Error: ")
        return ours and not self._repeats.is_one(text)

    def _on_change(self, part: Part) -> None:
        self._display.changed(part)
        if part.state is State.FAILED:
            self._display.say(f"  its log: dynamo logs {part.label}")
        self._write_soon()

    async def _refresh(self) -> None:
        while True:
            self._display.parts(self._supervisor.parts)
            if any(p.servable_since and not p.greeted for p in self._pipelines):
                self._supervisor.wake()
            if any(p.state.is_damaged for p in self._pipelines):
                self._write_soon()
            settled = all(part.life.settled for part in self._supervisor.parts)
            await asyncio.sleep(_REST_EVERY if settled else _REFRESH_EVERY)

    def _write_soon(self) -> None:
        if not self._write_due:
            self._write_due = True
            asyncio.get_running_loop().call_later(0.02, self._write)

    def _write(self) -> None:
        self._write_due = False
        for pipeline in self._pipelines:
            parts = self._of(pipeline, *_SHOW_ORDER)
            pipeline.record.parts = [part_state(part) for part in parts]
            with contextlib.suppress(OSError):  # a full disk must not end what serves
                pipeline.state.write(pipeline.record)
