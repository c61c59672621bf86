"""`dynamo apply` against a real API server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Shell  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

MOCKER = """apiVersion: dynamo.dev/v1alpha1
kind: DynamoPipeline
metadata: {name: mocker}
spec:
  components: [{engine: mocker}]
"""


def test_created_configured_unchanged(shell: Shell) -> None:
    """What became of each object, in kubectl's words; only fields of the file are ours."""
    assert shell.run("apply", "-", text=MOCKER).stdout == "dynamopipeline mocker created\n"
    assert shell.run("apply", "-", text=MOCKER).stdout == "dynamopipeline mocker unchanged\n"
    again = shell.run("apply", "-", text=MOCKER.replace("spec:", "spec:\n  replicas: 3"))
    assert (again.stdout, again.returncode) == ("dynamopipeline mocker configured\n", 0)
    managers = {m["manager"]: m for m in shell.live("mocker")["metadata"].get("managedFields", [])}
    assert managers == {} or managers["dynamo-cli"]["operation"] == "Apply"


def test_wait_follows_this_generation(shell: Shell) -> None:
    """An older generation's Ready doesn't count; then model, URL and a line to paste."""
    shell.run("apply", "-", text=MOCKER)
    shell.write_status("mocker", "True", "Serving", "every part is ready and the endpoint serves", model="mocker")
    done: list[object] = []

    def later() -> None:
        time.sleep(3)
        parts = [{"name": "worker", "revision": "r1", "desired": 2, "updated": 2, "ready": 2, "routable": 2}]
        shell.write_status("mocker", "True", "Serving", "serves", model="mocker", components=parts)

    thread = threading.Thread(target=later)
    thread.start()
    began = time.monotonic()
    found = shell.run("apply", "-", "--wait", text=MOCKER.replace("spec:", "spec:\n  replicas: 2"))
    thread.join()
    assert found.returncode == 0, found.stderr
    assert time.monotonic() - began > 3, done
