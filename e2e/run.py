"""What `make e2e`, `e2e-full`, `e2e-up` and `e2e-down` run: cluster up, images in, scenarios, cluster down.

`python -m e2e.run test [--full] [pytest's words]`, `up`, `down`, `tools` (every binary that tests and benches use).
`test` starts `arrive` beside the tests, since half of them need no cluster: it makes images and cluster.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from e2e import arrival
from e2e.images import earlier
from e2e.images.make import make_images
from e2e.images.recipes import read
from e2e.kind import binaries, cluster, dockerd
from e2e.kind.cluster import Kind
from e2e.kind.docker import Docker
from e2e.kind.places import REPOSITORY, Places
from e2e.kind.steps import StepError, say

WORKERS = "3"
"""More than there are cores: scenarios wait for pods more than they compute."""
SPREAD = ("--dist", "loadscope", "--no-loadscope-reorder")
"""By the groups and in the order that conftest.py gives."""
RETRIES = ("--reruns", "1", "-rfER")
"""A machine that is held up for seconds can fail any scenario once; the summary names what needed its second try."""
SAME_SECONDS = 3
END_SECONDS = 60


def main(words: Sequence[str]) -> int:
    """Carry out one verb; the exit status (pytest's own for `test`, 130 when interrupted)."""
    places = Places.of(os.environ)
    interrupt = _Interrupt()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell that starts us in the background has SIGINT ignored
        signal.signal(number, interrupt)
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # of commands that only root needs
    try:
        match words:
            case ["test", *rest]:
                return _test(places, rest)
            case ["up"]:
                with _alone(places):
                    return _keep(places)
            case ["down"]:
                with _alone(places):
                    cluster.down(places)
            case ["arrive", "--full" | "--usual" as lane, lock]:
                with arrival.announced(int(lock)):
                    _up(places, full=lane == "--full")
            case ["tools"]:
                with _alone(places):
                    binaries.build_all(places, (*binaries.TOOLS, *binaries.BENCH_TOOLS))
            case _:
                say(str(__doc__))
                return 2
    except StepError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return 0


class _Interrupt:
    """The first signal ends what runs, and we clean up. One at once is the same again: make and timeout repeat it.

    One that comes later ends the cleaning too; the next run does the rest.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, _number: int, _frame: object) -> None:
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        if self._first == now or now - self._first > SAME_SECONDS:
            raise KeyboardInterrupt


@contextmanager
def _alone(places: Places) -> Iterator[None]:
    """Hold the lock of this cluster; the system frees it however we end."""
    places.cache.mkdir(parents=True, exist_ok=True)
    with places.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise StepError(
                f"process {file.read().strip()} uses {places.cache} already: wait for it, or set DYNAMO_E2E_CACHE "
                "to another folder for a cluster of your own"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _test(places: Places, words: Sequence[str]) -> int:
    if os.environ.get("E2E_KUBECONFIG"):
        return _pytest([], dict(os.environ), words)
    with _alone(places):
        if places.kept.exists():
            kind = _up(places, full="--full" in words)
            return _pytest(kind.docker.enter, {**os.environ, **kind.env}, words)
        with _cluster(places, full="--full" in words) as (kind, coming):
            return _pytest(kind.docker.enter, {**os.environ, **kind.env, **coming, "E2E_CLUSTER_GOES": "1"}, words)


@contextmanager
def _cluster(places: Places, *, full: bool) -> Iterator[tuple[Kind, dict[str, str]]]:
    """A cluster that is on its way, and goes when we end; what a killed run left goes first."""
    try:
        cluster.down(places)
        docker = _tools(places, full=full)
        if docker.private:
            dockerd.start(places)
        lane = "--full" if full else "--usual"
        with arrival.awaited(places.arrival, [sys.executable, "-m", "e2e.run", "arrive", lane]) as coming:
            yield Kind(places, docker), coming
    finally:
        cluster.down(places)


def _tools(places: Places, *, full: bool = False) -> Docker:
    binaries.require_go()
    docker = cluster.docker_for(places)
    binaries.build_all(places)
    binaries.fetch_for_tests(places, full=full)
    return docker


def _up(places: Places, *, full: bool) -> Kind:
    docker = _tools(places)
    if full:
        binaries.build_otelcol(places)
    catalogue = read(REPOSITORY)
    tool = "buildah" if docker.private else ""
    images = make_images(places, [] if full else catalogue.usual, tool)
    kind = cluster.up(places, docker)
    kind.load(image.file for image in images if full or image.name in catalogue.loaded)
    if full:
        try:
            kind.load(earlier.images(places, tool))
        except StepError as error:  # one scenario needs them, and says so
            say(f"the release before this one isn't on the nodes: {error}")
    return kind


def _keep(places: Places) -> int:
    kind = _up(places, full=True)
    places.kept.touch()
    enter = " ".join(kind.docker.enter)
    say("the cluster is up; `make e2e` uses it and leaves it, `make e2e-down` deletes it")
    say(f"kubectl: {enter} {places.bin}/kubectl --kubeconfig {places.kubeconfig} get nodes")
    return 0


def _pytest(enter: Sequence[str], env: dict[str, str], words: Sequence[str]) -> int:
    """Run the scenarios where the cluster can be reached; pytest ends with its own summary."""
    full = "--full" in words
    given = [word for word in words if word != "--full"]
    paths = [] if any(not word.startswith("-") and os.path.exists(word.split("::")[0]) for word in given) else ["e2e"]
    chosen = [] if full else ["-m", "not full"]
    command = [*enter, sys.executable, "-m", "pytest", "-n", WORKERS, *SPREAD, *RETRIES, *chosen, *paths, *given]
    # A session of its own: a terminal's Ctrl-C reaches it once, through us; the second would cut its cleaning short.
    env = {**env, "E2E_RUN": uuid.uuid4().hex[:8]}
    process = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        raise
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        _end_left(env["E2E_RUN"])


def _end_left(run: str) -> None:
    """End what tests that were cut off left, such as API servers of their own: the run is in its environment."""
    left = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_of(run, pid)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if left:
        say(f"{len(left)} processes of tests that were cut off are ended")


def _is_of(run: str, pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"E2E_RUN={run}".encode() in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
