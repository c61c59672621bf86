"""How test processes share the tests: some begin with those that wait, some with those that compute.

A test that starts programs waits for most of its time. One that computes wants a core. So that neither cores nor
minutes are lost, both kinds run side by side from the first minute on.
"""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

COMPUTING: Final = 2
"""So many processes take from the end of the queue, where the tests are that compute; the others from its beginning."""
APART: Final = (
    "tests/docs/test_pages.py", "tests/examples/test_examples.py", "tests/bench/chaos/test_chaos.py",
    "tests/cli/run/test_run_processes.py", "tests/cli/local/test_up.py", "tests/system/outage/test_migration.py",
)  # fmt: skip
"""Files whose tests share nothing that takes long to make; any other goes to one process as a whole."""


class Sides(LoadScopeScheduling):  # type: ignore[misc]
    """A queue of files, and of single tests of `APART`, that is taken from both ends."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else file

    def remove_node(self, node: Any) -> str | None:
        """Give back what a process that died had left: xdist queues its finished files too, which have no test."""
        workload = self.assigned_work[node]
        self.assigned_work[node] = {scope: unit for scope, unit in workload.items() if not all(unit.values())}
        return super().remove_node(node)  # type: ignore[no-any-return]

    def _reschedule(self, node: Any) -> None:
        """Leave the process two tests or its end: it runs its last one only when another or a shutdown comes, and one
        that replaces a dead one is handed a single unit."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        if int(node.gateway.id.removeprefix("gw")) < COMPUTING:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
