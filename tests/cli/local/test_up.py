"""`dynamo up` from its start to its end, with stand-ins for frontend and worker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import socket
import subprocess
import termios
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Workplace  # type: ignore[import-not-found]  # pytest finds it, mypy doesn't

pytestmark = [pytest.mark.processes, pytest.mark.servers]


def test_serves_and_prints_a_curl_line_that_works(place: Workplace) -> None:
    """Model, URL, and a line that a shell can run."""
    place.fake()
    up = place.up(place.write(replicas=2))
    model = up.wait_for("model ")
    url = up.wait_for("url ").split()[1]
    line = up.wait_for("curl ")
    words = shlex.split(line)
    assert model.split()[1] == "test"
    assert url in line
    assert json.loads(words[words.index("-d") + 1])["model"] == "test"
    asked = subprocess.run(["curl", "-s", f"{url}/models"], capture_output=True, text=True, check=True, timeout=10)
    assert json.loads(asked.stdout)["data"][0]["id"] == "test"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_one_signal_ends_in_order(place: Workplace, number: signal.Signals, code: int) -> None:
    """Frontend, then workers, then NATS and etcd; nothing is left."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    up.signal(number)
    written = up.end()
    assert up.process.returncode == code
    stops = [line.split(":")[0] for line in written.splitlines() if line.endswith(": stopped")]
    assert stops.index("frontend") < stops.index("worker-0") < min(stops.index("nats"), stops.index("etcd"))
    assert "waiting for frontend" in written
    place.nothing_left()


def test_two_signals_end_now(place: Workplace) -> None:
    """A worker that ignores SIGTERM doesn't outlive the second Ctrl-C."""
    place.fake(worker={"deaf": True})
    up = place.up(place.write())
    up.wait_for("curl ")
    up.signal(signal.SIGINT)
    up.wait_for("waiting for worker-0")
    up.signal(signal.SIGINT)
    up.end()
    assert up.process.returncode == 130
    place.nothing_left()


def test_nothing_survives_kill_9(place: Workplace) -> None:
    """Not the parts, not their children, not etcd, not NATS; and the next run starts as if nothing had been."""
    place.fake(worker={"child": True})
    file = place.write()
    up = place.up(file)
    up.wait_for("curl ")
    assert len(place.processes()) >= 7  # up, watchdog, etcd, nats, frontend, worker and its child
    up.signal(signal.SIGKILL)
    up.end()
    place.nothing_left()
    assert "dead" in place.run("ps").stdout
    again = place.up(file)
    again.wait_for("curl ")
    again.signal(signal.SIGINT)
    again.end()


def test_a_crashed_worker_is_started_again(place: Workplace) -> None:
    """kill -9 of a worker: said, counted, serving again with another pid; the children of the dead one are gone."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    before = place.part_pid("worker-0")
    os.kill(before, signal.SIGKILL)
    assert "killed by signal 9" in up.wait_for("worker-0: stopped, starts again")
    up.wait_for("worker-0: ready")
    place.wait_until(lambda: place.part_pid("worker-0") != before, "the state names the new process")
    listed = json.loads(place.run("ps", "-o", "json").stdout)
    worker = next(p for p in listed[0]["parts"] if p["name"] == "worker-0")
    assert (worker["restarts"], worker["reason"]) == (1, "")
    assert worker["ended"].startswith("killed by signal 9 (SIGKILL): ")
    assert "started again: killed by signal 9 (SIGKILL)" in place.run("ps").stdout


@pytest.mark.parametrize("part", ["etcd", "nats"])
def test_a_crashed_server_is_started_again_on_its_port(place: Workplace, part: str) -> None:
    """etcd and NATS are supervised like every part."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    os.kill(place.part_pid(part), signal.SIGKILL)
    up.wait_for(f"{part}: ready")


def test_a_worker_that_will_not_start_says_why_and_the_rest_serves(place: Workplace) -> None:
    """Its last log line stands in the message; another component serves."""
    place.fake(worker={"fail": "no such model: /nowhere", "code": 2, "fail_at": "bad"})
    text = (
        "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: test}\n"
        "spec: {components: [{name: bad, engine: mocker}, {name: good, engine: mocker}]}\n"
    )
    up = place.up(place.write(text=text))
    assert "no such model: /nowhere" in up.wait_for("bad-0: will not start")
    assert "(1 of 2 workers so far)" in up.wait_for("model ")
    assert "exited with code 2: ERROR no such model: /nowhere" in place.run("ps").stdout
    assert up.process.poll() is None


def test_nothing_that_could_serve_ends_the_run(place: Workplace) -> None:
    """All workers failed: exit code 1 and everything is stopped."""
    place.fake(worker={"fail": "GGUF is cut in half", "code": 2})
    up = place.up(place.write())
    written = up.end()
    assert up.process.returncode == 1
    shown = [line for line in written.splitlines() if "GGUF is cut in half" in line]
    assert shown[-1] == "error: worker-0: exited with code 2: ERROR GGUF is cut in half"
    assert written.splitlines()[-1].strip() == "its log: dynamo logs worker-0", "nothing scrolls the reason away"
    place.nothing_left()


def test_a_reason_that_comes_again_is_not_repeated(place: Workplace) -> None:
    """Whole where it came first, and last of all."""
    place.fake(worker={"fail": "no module of this name", "code": 1})
    up = place.up(place.write())
    written = up.end()
    assert up.process.returncode == 1
    assert "worker-0: will not start: the same again" in written
    shown = [line for line in written.splitlines() if "no module of this name" in line]
    assert [line.partition(":")[0] for line in shown if not line.startswith("worker-0 |")] == ["worker-0", "error"]


def test_a_port_in_use_says_by_whom(place: Workplace) -> None:
    """Pid and the way out, before any frontend starts."""
    place.fake()
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        up = place.up(place.write(), "--http-port", str(port))
        written = up.end()
    assert up.process.returncode == 1
    assert f"port {port} is in use by" in written
    assert f"pid {os.getpid()}" in written
    assert "--http-port 0" in written
    assert "Traceback" not in written
    place.nothing_left()


def test_a_second_up_says_who_holds_it(place: Workplace) -> None:
    """The same pipeline twice: the second names the first."""
    place.fake()
    file = place.write()
    first = place.up(file)
    first.wait_for("curl ")
    second = place.up(file)
    written = second.end()
    assert second.process.returncode == 1
    assert "test is up already" in written
    assert f"pid {first.process.pid}" in written
    port = next(line for line in first.seen if "  url" in line).rpartition(":")[2].removesuffix("/v1")
    other = place.up(place.write("other"), "--http-port", port)
    assert f"port {port} is in use by the pipeline test (`dynamo up {file}`" in other.end()
    assert first.process.poll() is None


def test_servers_that_the_environment_names_must_answer(place: Workplace) -> None:
    """Both the address and who named it stand in the message."""
    place.fake()
    place.environment["NATS_SERVER"] = "nats://user:secret@127.0.0.1:1"
    up = place.up(place.write())
    written = up.end()
    assert up.process.returncode == 1
    assert "can't reach NATS at nats://127.0.0.1:1 (connection refused)" in written
    assert "NATS_SERVER" in written
    assert "secret" not in written


def test_running_servers_are_used(place: Workplace) -> None:
    """A second pipeline on the first one's etcd and NATS starts none of its own."""
    place.fake()
    first = place.up(place.write())
    first.wait_for("curl ")
    state = json.loads(place.run("ps", "-o", "json").stdout)[0]
    place.environment |= {"ETCD_ENDPOINTS": state["etcd"], "NATS_SERVER": state["nats"]}
    second = place.up(place.write("other"))
    second.wait_for("etcd: using the one that ETCD_ENDPOINTS names")
    second.wait_for("curl ")
    listed = {s["pipeline"]: [p["name"] for p in s["parts"]] for s in json.loads(place.run("ps", "--json").stdout)}
    assert listed["other"] == ["frontend", "worker-0"]


def test_two_pipelines_of_one_file(place: Workplace) -> None:
    """One etcd and one NATS, a frontend each, labels with the pipeline's name."""
    place.fake()
    first, second = (place.write(name).read_text() for name in ("one", "two"))
    up = place.up(place.write("both", text=f"{first}---\n{second}"))
    up.wait_for("curl ", times=2)
    listed = {s["pipeline"]: s for s in json.loads(place.run("ps", "--json").stdout)}
    assert listed["one"]["url"] != listed["two"]["url"]
    assert listed["one"]["etcd"] == listed["two"]["etcd"]
    assert any(line.startswith("two/worker-0: ready") for line in up.seen)


def test_verbose_shows_logs_with_their_part(place: Workplace) -> None:
    """-v shows what is kept in the log files anyway."""
    place.fake()
    up = place.up(place.write(), "-v")
    up.wait_for("worker-0 | INFO worker starts")
    up.wait_for("curl ")
    assert place.run("logs", "worker-0").stdout == "INFO worker starts\n"
    assert "worker-0 | INFO worker starts" in place.run("logs").stdout
    assert "did you mean worker-0?" in place.run("logs", "wroker-0").stderr


def test_logs_follow_until_the_end(place: Workplace) -> None:
    """-f goes on while the pipeline runs and ends with it."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    with subprocess.Popen(
        [*place.command(), "logs", "-f", "worker"],
        stdout=subprocess.PIPE, text=True, env=place.environment,
    ) as follow:  # fmt: skip
        assert follow.stdout is not None
        assert follow.stdout.readline() == "INFO worker starts\n"
        up.signal(signal.SIGTERM)
        assert follow.stdout.readline() == "INFO worker ends\n"
        assert follow.wait(20) == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("model: {source: pvc://claim/llama}\n  components: [{engine: llamacpp}]", "use a path or hf://"),
        ("model: {source: x, tokenSecret: {name: hf}}\n  components: [{engine: llamacpp}]", "set HF_TOKEN"),
        ("components: [{engine: python, python: {file: a.py, configMap: c}}]", "set python.file to a path"),
    ],
)
def test_what_needs_a_cluster_is_refused_with_a_hint(place: Workplace, body: str, said: str) -> None:
    """One sentence before anything starts."""
    place.environment.pop("HF_TOKEN", None)
    head = "apiVersion: dynamo.dev/v1alpha1\nkind: DynamoPipeline\nmetadata: {name: test}\nspec:\n  "
    up = place.up(place.write(text=head + body))
    assert said in up.end()
    assert up.process.returncode == 1


def test_a_file_with_problems_starts_nothing(place: Workplace) -> None:
    """All of them, exit code 1, no state."""
    text = place.write().read_text().replace("mocker", "vlm") + "  x: 1\n"
    up = place.up(place.write(text=text))
    written = up.end()
    assert "did you mean vllm?" in written
    assert "spec.x" in written
    assert up.process.returncode == 1
    assert not place.state.exists()


def test_a_file_that_is_not_there_is_a_usage_error(place: Workplace) -> None:
    """Exit code 2, as for every wrong argument."""
    up = place.up("nowhere.yaml")
    assert "does not exist" in up.end()
    assert up.process.returncode == 2


def test_no_permission_on_the_state_folder(place: Workplace) -> None:
    """One sentence that names the folder and the variable."""
    place.fake()
    place.environment["XDG_STATE_HOME"] = "/proc/nowhere"
    up = place.up(place.write())
    assert "XDG_STATE_HOME" in up.end()
    assert up.process.returncode == 1


def test_after_the_end_nothing_is_up_and_the_logs_are_still_there(place: Workplace) -> None:
    """`ps` is empty, `logs` has the last run."""
    place.fake()
    up = place.up(place.write())
    up.wait_for("curl ")
    up.signal(signal.SIGTERM)
    up.end()
    assert "nothing is up" in place.run("ps").stdout
    assert json.loads(place.run("ps", "--json").stdout) == []
    assert "INFO worker ends" in place.run("logs", "worker-0").stdout


def test_a_traceback_is_for_the_log(place: Workplace) -> None:
    """Quietly: one line with the exception; the whole of it in `dynamo logs`."""
    place.fake(worker={"raise": "the model is a potato", "code": 1})
    up = place.up(place.write())
    written = up.end()
    assert "Traceback" not in written
    assert "worker-0: stopped, starts again: exited with code 1: ValueError: the model is a potato" in written
    assert "error: worker-0: exited with code 1: ValueError: the model is a potato" in written
    assert "Traceback" in place.run("logs", "worker-0").stdout


def test_a_reader_that_leaves_ends_nothing(place: Workplace) -> None:
    """`dynamo up | head -1`: the pipeline goes on serving, and still ends in order."""
    place.fake()
    words = [*place.command(), "up", str(place.write()), "--http-port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=place.environment) as up:
        assert up.stdout is not None
        up.stdout.readline()
        up.stdout.close()
        place.wait_until(lambda: place.is_ready("worker-0", restarts=0), "it serves")
        os.kill(place.part_pid("worker-0"), signal.SIGKILL)
        place.wait_until(lambda: place.is_ready("worker-0", restarts=1), "it serves again")
        up.send_signal(signal.SIGINT)
        assert up.wait(20) == 130
    place.nothing_left()


def test_on_a_terminal_ctrl_c_ends_in_order(place: Workplace) -> None:
    """A real terminal: a moving status, the greeting, and Ctrl-C typed there; children don't get it, we do."""
    place.fake()
    master, slave = pty.openpty()
    words = [*place.command(), "up", str(place.write()), "--http-port", "0"]
    environment = {**place.environment, "TERM": "xterm-256color", "COLUMNS": "200"}
    with subprocess.Popen(
        words, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as up:  # fmt: skip
        os.close(slave)
        seen = read_until(master, b"curl ")
        os.write(master, b"\x03")
        seen += read_until(master, None)
        assert up.wait(20) == 130
    os.close(master)
    assert b"worker-0" in seen
    assert b"waiting for frontend" in seen
    assert b"Traceback" not in seen
    place.nothing_left()


def read_until(fd: int, text: bytes | None) -> bytes:
    """What a terminal shows until `text`, or until its end."""
    seen = b""
    while text is None or text not in seen:
        ready, _, _ = select.select([fd], [], [], 30)
        assert ready, seen
        try:
            data = os.read(fd, 65_536)
        except OSError:  # Linux's way to say that the other side is closed
            return seen
        if not data:
            return seen
        seen += data
    return seen


def test_a_restarted_frontend_keeps_its_url(place: Workplace) -> None:
    """Also where the port was picked: what a client was told stays true."""
    place.fake()
    up = place.up(place.write(), "--http-port", "0")
    url = up.wait_for("url ").split()[1]
    up.wait_for("curl ")
    os.kill(place.part_pid("frontend"), signal.SIGKILL)
    up.wait_for("frontend: ready")
    with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:
        assert json.load(answer)["data"]


def test_no_workers_is_said(place: Workplace) -> None:
    """replicas: 0 serves nothing here, on purpose."""
    place.fake()
    up = place.up(place.write(replicas=0))
    assert "no workers: replicas is 0" in up.wait_for("model ")


def test_what_a_laptop_passes_over_is_said(place: Workplace) -> None:
    """envFrom and the runtime's secrets."""
    place.fake()
    text = place.write().read_text().replace("{engine: mocker}", "{engine: mocker, envFrom: [{secretRef: {name: a}}]}")
    text = text.replace("envFrom: [", "podTemplate: {metadata: {}}, envFrom: [")
    up = place.up(
        place.write(text=text + "  frontend: {podTemplate: {metadata: {}}}\n  runtime: {nats: {secret: x}}\n"),
        "--http-port",
        "0",
    )
    up.wait_for("note: spec.runtime.nats.secret is for a cluster; here NATS_AUTH_*")
    up.wait_for("note: spec.components[0].envFrom is for a cluster")
    up.wait_for("note: spec.components[0].podTemplate is for a cluster; here .env and your environment count")
    up.wait_for("note: spec.frontend.podTemplate is for a cluster; here your environment counts")
    up.wait_for("curl ")
