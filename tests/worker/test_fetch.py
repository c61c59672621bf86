"""Models of the hub, loaded by real processes from a stand-in: once for all, resumed, refused with a sentence."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.llm.stand_in_hub import Fault, Hub
from tests.waiting import eventually
from tests.worker.fetching import ended, fetched, said, serving, start, variables

pytestmark = pytest.mark.processes
MEGABYTES = int(os.environ.get("DYN_TEST_MODEL_MB", "8"))
"""Size of the weights; 500 in the run that docs/design/serving/models.md tells of."""
NAME = "model.safetensors"


@pytest.fixture(scope="session")
def weights() -> bytes:
    """So many megabytes that never repeat."""
    return os.urandom(MEGABYTES << 20)


@pytest.fixture
def hub(tmp_path: Path, weights: bytes) -> Iterator[Hub]:
    """With one model that has everything twice, and one of GGUF files."""
    folder = tmp_path / "served" / "org" / "tiny"
    (folder / "onnx").mkdir(parents=True)
    (folder / NAME).write_bytes(weights)
    for name in ("pytorch_model.bin", "onnx/model.onnx", "tiny-Q4_0.gguf", "README.md"):
        (folder / name).write_text("weights once more")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text(f'{{"name": "{name}"}}')
    other = tmp_path / "served" / "org" / "tiny-GGUF"
    other.mkdir()
    for variant in ("Q2_K", "Q4_K_M", "Q8_0-00001-of-00002", "Q8_0-00002-of-00002"):
        (other / f"tiny-{variant}.gguf").write_text(variant)
    (other / "mmproj-tiny-F16.gguf").write_text("eyes")
    with serving(tmp_path / "served") as served:
        yield served


def partial(home: Path) -> int:
    """Bytes of half files in a cache."""
    return sum(path.stat().st_size for path in home.rglob("*.incomplete"))


def test_killed_at_half_and_resumed_without_a_byte_twice(hub: Hub, tmp_path: Path, weights: bytes) -> None:
    """SIGKILL leaves what came; the next process asks for the rest and nothing else, and the content is right."""
    half = len(weights) // 2 + 12345
    hub.faults.append(Fault(NAME, hold_at=half))
    first = start(hub.url, tmp_path, "--model-path", "hf://org/tiny")
    eventually("half is there", lambda: partial(tmp_path) == half)
    first.kill()
    first.communicate()
    hub.faults[0].resume.set()
    folder = fetched(hub.url, tmp_path, "hf://org/tiny")
    assert (folder / NAME).read_bytes() == weights
    assert [load.start for load in hub.loads if load.name == NAME] == [0, half]
    assert hub.loads[-1].sent == len(weights) - half
    assert partial(tmp_path) == 0


def test_four_at_once_load_each_file_once(hub: Hub, tmp_path: Path, weights: bytes) -> None:
    """As four pods with one volume do; who waits says how far it is; whoever comes later loads nothing."""
    hub.pause = 1.0 / (len(weights) >> 16)
    several = [start(hub.url, tmp_path, "--engine", "vllm", "--model-path", "hf://org/tiny") for _ in range(4)]
    answers = [ended(process) for process in several]
    assert [code for code, _, _ in answers] == [0] * 4, answers
    assert len({out for _, out, _ in answers}) == 1
    assert {load.name for load in hub.loads} == {NAME, "config.json", "tokenizer.json"}
    assert {load.name: hub.sent(load.name) for load in hub.loads}[NAME] == len(weights)
    assert all(hub.downloads(name) == 1 for name in (NAME, "config.json", "tokenizer.json"))
    folder = fetched(hub.url, tmp_path, "hf://org/tiny")
    assert (folder / NAME).read_bytes() == weights
    assert hub.downloads(NAME) == 1


def test_the_holder_of_the_lock_may_die(hub: Hub, tmp_path: Path, weights: bytes) -> None:
    """Those who waited go on where it was, and still no byte comes twice."""
    half = len(weights) // 3
    hub.faults.append(Fault(NAME, hold_at=half))
    holder = start(hub.url, tmp_path, "--model-path", "hf://org/tiny")
    eventually("half is there", lambda: partial(tmp_path) == half)
    waiting = [start(hub.url, tmp_path, "--model-path", "hf://org/tiny") for _ in range(3)]
    eventually("all ask", lambda: sum(path.endswith("/revision/main") for _, path, _ in hub.asked) >= 4)
    holder.kill()
    holder.communicate()
    hub.faults[0].resume.set()
    assert [ended(process)[0] for process in waiting] == [0] * 3
    assert [load.start for load in hub.loads if load.name == NAME] == [0, half]
    assert hub.loads[-1].sent == len(weights) - half


def test_the_hubs_own_library_finds_the_files(hub: Hub, tmp_path: Path) -> None:
    """Other tools share the cache: offline, by its own function."""
    fetched(hub.url, tmp_path, "hf://org/tiny")
    code = "from huggingface_hub import hf_hub_download as d; print(d('org/tiny', 'model.safetensors'))"
    environment = variables("http://127.0.0.1:9", tmp_path, HF_HUB_OFFLINE="1")
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert Path(answer.stdout.strip()).stat().st_size == (MEGABYTES << 20)


WRONG = {
    "hf://org/tinny": "no such model (did you mean org/tiny?)",
    "orgg/tiny": "no such model (did you mean org/tiny?)",
    "hf://org/tiny@v9": "no such revision; ",
    "hf://org/tiny@v1": "did you mean v1.0?",
    "hf://org": "use hf://org/repo",
    "": "use hf://org/repo",
    "org/tiny-GGUF:Q3_K": "it has Q2_K, Q4_K_M, Q8_0",
    "org/tiny-GGUF/tiny-Q4_K.gguf": "did you mean tiny-Q4_K_M.gguf?",
}


def test_what_is_wrong_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    """With the remedy, and without a traceback."""
    sentences = dict(zip(WRONG, said(hub.url, tmp_path, *WRONG), strict=True))
    assert [sentences[source] for source, words in WRONG.items() if words not in sentences[source]] == []
    code, _, err = ended(start(hub.url, tmp_path, "--model-path", "hf://org/tinny"))
    assert (code, err.startswith("Error: "), "Traceback" in err) == (1, True, False)


def test_a_mirror_that_can_not_suggest(hub: Hub, tmp_path: Path) -> None:
    """What it answers to searches may have any shape: what can't be read suggests nothing."""
    hub.odd = True
    name, revision = said(hub.url, tmp_path, "hf://org/tinny", "hf://org/tiny@v9")
    assert name.startswith("hf://org/tinny: the hub has no such model; check the name")
    assert revision == "hf://org/tiny@v9: the model has no such revision; it has v1.0"


def test_a_password_of_a_mirror_is_told_nobody(hub: Hub, tmp_path: Path) -> None:
    """It stands in HF_ENDPOINT for mirrors that want one; sentences and logs name the host alone."""
    hub.token, own = "hf_secret", hub.url.replace("//", "//somebody:hunter2@")
    assert f"on its page {hub.url}/org/tiny and" in said(own, tmp_path, "org/tiny")[0]
    hub.token = ""
    fetched(own, tmp_path, "hf://org/tiny")
    hub.faults.append(Fault("api", times=99, status=500))
    code, out, err = ended(start(own, tmp_path, "--model-path", "org/tiny"))
    assert code == 0, err
    assert "Can't reach the Hugging Face Hub (the hub answers 500)" in err
    assert "hunter2" not in out + err


def test_a_hub_that_leads_round_in_circles(hub: Hub, tmp_path: Path) -> None:
    """It is told as what it is, not as a download that somebody stopped."""
    hub.faults.append(Fault(NAME, times=999, status=302))
    assert "redirects" in said(hub.url, tmp_path, "org/tiny")[0]


def test_a_hub_that_fails_for_a_while(hub: Hub, tmp_path: Path, weights: bytes) -> None:
    """Its questions about the model are asked again; what stays is a sentence."""
    hub.faults += [Fault("api", times=2, status=503), Fault("api", status=429)]
    assert (fetched(hub.url, tmp_path, "hf://org/tiny") / NAME).read_bytes() == weights
    hub.faults.append(Fault("api", times=99, status=429))
    assert "too many requests from here" in said(hub.url, tmp_path / "other", "org/tiny")[0]
    hub.faults[:] = [Fault("api", times=99, status=500)]
    assert "the hub answers 500; check the way" in said(hub.url, tmp_path / "other", "org/tiny")[0]


def test_an_engine_that_reads_gguf_only(hub: Hub, tmp_path: Path) -> None:
    """Of many quantisations one is loaded, of a split one all parts; where there is none, that is said."""
    (hub.folder / "org" / "tiny" / "tiny-Q4_0.gguf").unlink()
    first, split, named, none = said(
        hub.url, tmp_path, "org/tiny-GGUF", "org/tiny-GGUF:q8_0", "hf://org/tiny-GGUF/tiny-Q2_K.gguf@main", "org/tiny",
        engine="llamacpp",
    )  # fmt: skip
    assert Path(first.removeprefix("loaded ")).read_text() == "Q4_K_M"
    assert split.endswith("/tiny-Q8_0-00001-of-00002.gguf")
    assert Path(split.removeprefix("loaded ")).with_name("tiny-Q8_0-00002-of-00002.gguf").exists()
    assert Path(named.removeprefix("loaded ")).read_text() == "Q2_K"
    assert "no GGUF file" in none
    assert len(hub.loads) == 4


def test_simulated_engines_need_no_weights(hub: Hub, tmp_path: Path) -> None:
    """Only what says how the model is talked to."""
    folder = fetched(hub.url, tmp_path, "hf://org/tiny", "--engine", "mocker")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "tokenizer.json"]


def test_a_gated_model_needs_the_token(hub: Hub, tmp_path: Path) -> None:
    """It is said where access is granted and how a token is given; no other host sees it, and nobody reads it."""
    hub.token = "hf_secret"
    page = f"ask for access on its page {hub.url}/org/tiny"
    assert f"{page} and set HF_TOKEN (spec.model.tokenSecret)" in said(hub.url, tmp_path, "org/tiny")[0]
    assert f"{page} with the account of HF_TOKEN" in said(hub.url, tmp_path, "org/tiny", HF_TOKEN="hf_stranger")[0]
    assert "the hub refuses the token" in said(hub.url, tmp_path, "org/tiny", HF_TOKEN="hf_typo")[0]
    hub.gated = False
    assert "it is private: set HF_TOKEN" in said(hub.url, tmp_path, "org/tiny")[0]
    code, out, err = ended(start(hub.url, tmp_path, "--model-path", "hf://org/tiny", HF_TOKEN="hf_secret"))
    assert code == 0, err
    assert "hf_secret" not in out + err
    assert [with_token for _, path, with_token in hub.asked if path.startswith("cdn/")] == [False]


def test_without_the_hub_what_is_whole_serves(hub: Hub, tmp_path: Path) -> None:
    """A worker that starts again while the hub is down finds its model; one that never had it is told why not."""
    home, nobody = tmp_path / "home", "http://127.0.0.1:9"
    folder = fetched(hub.url, home, "hf://org/tiny")
    assert fetched(nobody, home, "hf://org/tiny") == folder
    assert said(nobody, home, "org/tiny", HF_HUB_OFFLINE="1") == [f"loaded {folder}"]
    (never,) = said(nobody, home, "org/tiny", engine="llamacpp", HF_HUB_OFFLINE="1")
    assert "tiny-Q4_0.gguf is not in the cache, and HF_HUB_OFFLINE is set: load it once" in never
    (other,) = said(nobody, tmp_path / "other", "org/tiny")
    assert "HF_ENDPOINT" in other


def test_a_full_disk_is_told_before_the_first_byte(hub: Hub, tmp_path: Path) -> None:
    """How much is needed, how much is there, and what to do; how much is free is made up."""
    code = (
        "import shutil; shutil.disk_usage = lambda _: type('U', (), {'free': 1000})();"
        "from dynamo.worker.fetch import main; main()"
    )
    command = [sys.executable, "-c", code, "--model-path", "org/tiny"]
    answer = subprocess.run(command, env=variables(hub.url, tmp_path), capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "needs" in answer.stderr
    assert "has 1 kB free: free space there" in answer.stderr
    assert not hub.loads


def test_a_disk_that_fills_up_meanwhile(hub: Hub, tmp_path: Path) -> None:
    """By a limit on the size of files, the process is told by the system as it is by a full disk; what came stays."""
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from dynamo.worker.fetch import main; main()"
    )
    command = [sys.executable, "-c", code, "--model-path", "org/tiny"]
    answer = subprocess.run(command, env=variables(hub.url, tmp_path), capture_output=True, text=True, check=False)
    assert answer.returncode == 1
    assert "can't be stored in" in answer.stderr
    assert "Traceback" not in answer.stderr
    # Beside the weights there may be a small file that had just come when all was given up.
    assert max(path.stat().st_size for path in tmp_path.rglob("*.incomplete")) == 1 << 20
    fetched(hub.url, tmp_path, "org/tiny")
    assert [load.start for load in hub.loads if load.name == NAME] == [0, 1 << 20]


def test_progress_in_a_log_and_on_a_terminal(hub: Hub, tmp_path: Path) -> None:
    """Lines for a log, a bar for people; Ctrl-C ends it at once with 130, and what came stays."""
    hub.faults.append(Fault(NAME, hold_at=1 << 20))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dynamo.worker.fetch", "--model-path", "org/tiny"]
    process = subprocess.Popen(
        command, env=variables(hub.url, tmp_path, TERM="xterm", COLUMNS="120"), stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    seen = ""
    while f"1.0 MB of {(MEGABYTES << 20) / 1e6:.1f} MB" not in seen and process.poll() is None:
        seen += os.read(ours, 4096).decode()
    assert "[##" in seen or "[#." in seen or "[.." in seen
    process.send_signal(signal.SIGINT)
    eventually("it ends", lambda: process.poll() is not None)
    hub.faults[0].resume.set()
    os.close(ours)
    process.communicate()
    assert process.returncode == 130
    assert partial(tmp_path) == 1 << 20
    _, _, err = ended(start(hub.url, tmp_path, "--model-path", "org/tiny"))
    assert "hf://org/tiny: loading 1 files, 1.0 MB of" in err
    assert "(100%)" in err
    assert "hf://org/tiny: loaded" in err


def test_an_init_container_that_is_told_to_end(hub: Hub, tmp_path: Path) -> None:
    """A container's first process gets no SIGTERM that it doesn't ask for: its pod would stay for all of its grace."""
    hub.faults.append(Fault(NAME, hold_at=1 << 20))
    code = "import os; os.getpid = lambda: 1; from dynamo.worker.fetch import main; main()"
    command = [sys.executable, "-c", code, "--model-path", "org/tiny"]
    process = subprocess.Popen(command, env=variables(hub.url, tmp_path), stderr=subprocess.DEVNULL)
    eventually("half is there", lambda: partial(tmp_path) == 1 << 20)
    process.terminate()
    eventually("it ends", lambda: process.poll() is not None)
    hub.faults[0].resume.set()
    assert process.wait() == 128 + signal.SIGTERM


def test_a_worker_that_loads_can_be_interrupted(hub: Hub, tmp_path: Path) -> None:
    """Ctrl-C ends it without waiting for the model; the next start goes on there."""
    (hub.folder / "org" / "tiny-GGUF" / "tiny-Q4_K_M.gguf").write_bytes(bytes(2 << 20))
    hub.faults.append(Fault("tiny-Q4_K_M.gguf", hold_at=1 << 20))
    command = [sys.executable, "-m", "dynamo.worker", "--engine", "llamacpp", "--model-path", "org/tiny-GGUF"]
    process = subprocess.Popen(command, env=variables(hub.url, tmp_path), stderr=subprocess.PIPE, text=True)
    eventually("half is there", lambda: partial(tmp_path) == 1 << 20)
    process.send_signal(signal.SIGINT)
    eventually("it ends", lambda: process.poll() is not None)
    hub.faults[0].resume.set()
    _, err = process.communicate()
    assert process.returncode == 130
    assert "Traceback" not in err
    fetched(hub.url, tmp_path, "org/tiny-GGUF", "--engine", "llamacpp")
    assert hub.loads[-1].start == 1 << 20
