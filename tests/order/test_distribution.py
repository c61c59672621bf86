"""How tests are shared out: whatever dies, no process waits for a test that never comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.order.distribution import Sides

TESTS = [f"tests/test_{file}.py::test_it" for file in "abcdefgh"]


class Process:
    """A test process by xdist's rules: it runs a test once it knows what comes after it."""

    def __init__(self, number: int, scheduler: Sides) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.scheduler = scheduler
        self.queue: list[int] = []
        self.shutting_down = False
        scheduler.add_node(self)
        scheduler.add_node_collection(self, TESTS)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def step(self) -> list[str]:
        """Run the next test if there is one that may run; return its name."""
        if len(self.queue) < (1 if self.shutting_down else 2):
            return []
        index = self.queue.pop(0)
        self.scheduler.mark_test_complete(self, index)
        return [TESTS[index]]


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Sides:
    """The scheduler of two processes, told nothing of a real run."""
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda config: ["popen", "popen"])
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=False))
    return Sides(config, SimpleNamespace(loadscopesched=lambda *words: None))


def run(processes: list[Process], most: int = 100) -> list[str]:
    """Let the processes run what they may, in turn, until none may."""
    ran: list[str] = []
    for _ in range(most):
        ran += (names := [name for process in processes for name in process.step()])
        if not names:
            break
    return ran


def test_every_test_runs_once(scheduler: Sides) -> None:
    """Both processes end with a shutdown, and nothing stays in the queue."""
    processes = [Process(number, scheduler) for number in range(2)]
    scheduler.schedule()
    assert sorted(run(processes)) == TESTS
    assert all(process.shutting_down for process in processes)


@pytest.mark.parametrize("before", range(5))
def test_a_dead_process_is_replaced(scheduler: Sides, before: int) -> None:
    """Whenever one dies, the others and its replacement run all that is left, finished files not again."""
    first, second = (Process(number, scheduler) for number in range(2))
    scheduler.schedule()
    ran = [name for _ in range(before) for process in (first, second) for name in process.step()]
    scheduler.remove_node(second)
    replacement = Process(2, scheduler)
    scheduler.schedule()
    assert sorted(ran + run([first, replacement])) == TESTS
    assert first.shutting_down
    assert replacement.shutting_down
