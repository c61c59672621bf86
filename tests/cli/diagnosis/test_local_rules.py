"""Rules over recorded facts of pipelines on a laptop: the first finding is the cause, with a command that mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from dynamo.cli.diagnosis import environment, machine, traffic
from dynamo.cli.diagnosis.environment import EnvironmentFacts, misspelt
from dynamo.cli.diagnosis.file_fields import FieldFact, UpFact, UpstreamFact
from dynamo.cli.diagnosis.findings import Finding, report_of
from dynamo.cli.diagnosis.local_pipeline import LocalFacts, LocalPart, local_findings
from dynamo.cli.diagnosis.machine import HubFact, MachineFacts, ModelFact
from dynamo.cli.diagnosis.servers import ServerFact
from dynamo.cli.diagnosis.slowness import RunningFact, WorkerFact
from dynamo.cli.diagnosis.traffic import TrafficFacts
from dynamo.cli.local.facts.environment import collect
from dynamo.cli.local.facts.hub import ask

READY: Final = (
    LocalPart("etcd", "ready", kind="infra", pid=7),
    LocalPart("frontend", "ready", kind="frontend"),
    LocalPart("worker-0", "ready", kind="worker"),
)
UP: Final = LocalFacts("llama", "llama.yaml", True, READY, up_pid="42", state_folder="/state/llama")
ENDED: Final = LocalFacts("llama", "llama.yaml", False)
ASKED: Final = TrafficFacts("llama", requests=4, file="llama.yaml")
HUNG: Final = ServerFact("etcd", "http://127.0.0.1:2379", error="no answer within 3 s")
STUCK: Final = RunningFact("r1", "prefill", "worker-0", 40.0)
FULL: Final = WorkerFact("worker-0", "m", "generate", "aa", running=1, waiting=3, most=1)
HELD: Final = "mine.py:4 in generate has held the event loop for 2 s (time.sleep(600))"


def _first(findings: Any) -> Finding:
    return report_of([], findings).findings[0]


def _up(**broken: Any) -> Finding:
    return _first(local_findings(replace(UP, **broken)))


def _part(**broken: Any) -> Finding:
    return _up(parts=(*READY[:2], replace(READY[2], **broken)))


def _ended(reason: str, part: str = "worker-0") -> Finding:
    return _first(local_findings(replace(ENDED, reasons=((part, reason),))))


def _asked(**broken: Any) -> Finding:
    return _first(traffic.findings(replace(ASKED, **broken)))


def _here(**broken: Any) -> Finding:
    return _first(machine.findings(replace(MachineFacts(), **broken)))


BREAKAGES: dict[str, tuple[Callable[[], Finding], str, str, str]] = {
    "an etcd of its own hangs": (
        lambda: _up(servers=(HUNG,), own_servers=frozenset({"etcd"})), "server-away", "no answer", "kill -9 7",
    ),
    "somebody's etcd hangs": (lambda: _up(servers=(HUNG,)), "server-away", "no answer", "unset ETCD_ENDPOINTS"),
    "somebody's NATS is away": (
        lambda: _up(servers=(ServerFact("NATS", "nats://x", error="refused"),)), "server-away", "refused",
        "unset NATS_SERVER",
    ),
    "dynamo up is stopped": (lambda: _up(up_stopped=True), "stopped", "42", "kill -CONT 42"),
    "the state's disk is full": (lambda: _up(state_free_bytes=4096), "disk-full", "0 MiB", "dynamo clean"),
    "the state can't be read": (lambda: _up(unreadable="/state/llama/state.json"), "state-broken", "42", "kill 42"),
    "a worker ends again and again": (
        lambda: _part(restarts=3, ended="exited with code 1: boom"), "crash-loop", "boom", "dynamo logs llama/worker-0",
    ),
    "a worker is killed again and again": (
        lambda: _part(restarts=3, ended="killed by signal 9 (SIGKILL)"), "out-of-memory", "signal 9", "contextLength",
    ),
    "a file holds the event loop": (
        lambda: _part(state="notready", reason="no answer", last_error=HELD), "loop-blocked", "mine.py:4", "mine.py:4",
    ),
    "it failed at a field": (
        lambda: _ended("unknown mocker argument 'x'"), "engine-argument", "'x'", "correct spec.components[].engineArgs",
    ),
    "it failed at a template": (
        lambda: _ended("the chat template has an error in line 1"), "chat-template", "line 1",
        "spec.model.chatTemplate",
    ),
    "it failed at an import": (
        lambda: _ended("mine.py:1: ModuleNotFoundError: No module named 'torch'"), "module-missing", "torch",
        "pip install torch",
    ),
    "it failed at a model that is newer than llama.cpp": (
        lambda: _ended("llama.cpp can't load '/m.gguf': unknown model architecture: 'x'"), "engine-too-old", "'x'",
        "pip install -U xllamacpp",
    ),
    "it failed at the hub's name": (
        lambda: _ended("the hub can't be reached: Name or service not known; check the way to the hub"),
        "hub-unreachable", "Name or service", "HF_ENDPOINT",
    ),
    "it failed at a port": (lambda: _ended("port 80 is in use", ""), "port-taken", "port 80", "--http-port 0"),
    "it failed at an address": (
        lambda: _ended("can't listen on 10.9.9.9:0: Cannot assign", ""), "no-address", "10.9.9.9",
        "unset DYN_HTTP_HOST",
    ),
    "a page in the hub's place at the start": (
        lambda: _ended("unexpected JSONDecodeError: Expecting value"), "hub-answers-html", "JSON", "curl -I",
    ),
    "a package called dynamo beside the file": (
        lambda: _ended("python: No module named dynamo.frontend", "frontend"), "other-dynamo", "No module", "mv dynamo",
    ),
    "a variable that can't be read": (
        lambda: _ended("Invalid value for '--x' (env var: 'DYN_HTTP_X'): 'a'", "frontend"), "bad-variable", "'a'",
        "unset DYN_HTTP_X",
    ),
    "a level that is none": (lambda: _ended("DYN_LOG: '' is no level"), "bad-variable", "level", "unset DYN_LOG"),
    "a certificate that isn't there": (
        lambda: _ended("--tls-cert-path /x can't be read"), "bad-variable", "/x", "--tls-cert-path",
    ),
    "a server of its own that ends": (
        lambda: _ended("the server false ended (exit code 1)"), "server-ends", "false", "spec.components[].command",
    ),
    "nothing that is known": (
        lambda: _ended("exited with code 1: boom"), "not-up", "boom", "dynamo logs worker-0 --tail 50",
    ),
    "a server that isn't there": (
        lambda: _part(state="starting", upstream="Connection refused"), "upstream-away", "refused",
        "spec.components[].upstream",
    ),
    "a file that never comes to its end": (
        lambda: _part(state="starting", program="mine.py", since_seconds=9.0), "program-starts", "mine.py has not",
        "correct mine.py",
    ),
    "a file that is gone": (
        lambda: _part(restarts=3, ended="Error: --python-file mine.py: there is no such file"), "bad-program",
        "mine.py", "spec.components[].python.file",
    ),
    "a frontend that is killed again and again": (
        lambda: _up(parts=(replace(READY[1], restarts=3, ended="killed by signal 9 (SIGKILL)"), READY[2])), "killed",
        "signal 9", "dmesg",
    ),
    "a variable of a wrong kind": (
        lambda: _first(environment.findings(EnvironmentFacts(unreadable=("(env var: 'DYN_HTTP_PORT'): 'abc'",)))),
        "bad-variable", "abc", "unset DYN_HTTP_PORT",
    ),
    "a server of a file that isn't there": (
        lambda: _here(upstreams=(UpstreamFact("http://x/v1", "worker of llama", "refused"),)), "upstream-away",
        "refused", "spec.components[].upstream",
    ),
    "somebody ended it": (
        lambda: _first(local_findings(replace(ENDED, stopped_by_hand=True))), "not-up", "Ctrl-C",
        "dynamo up llama.yaml",
    ),
    "a worker that never answers": (
        lambda: _asked(running=(STUCK,)), "slow-worker", "r1, for 40 s", "dynamo explain r1",
    ),
    "a worker whose tokens crawl": (
        lambda: _asked(running=(replace(STUCK, stage="generate", tokens=5),)), "slow-worker", "5 tokens", "dynamo logs",
    ),
    "a full worker that never answers": (
        lambda: _asked(running=(STUCK,), workers=(FULL,)), "slow-worker", "without a token", "dynamo explain",
    ),
    "an engine's own limit": (
        lambda: _asked(running=(replace(STUCK, seconds=5.0),), workers=(FULL,)), "engine-limit", "runs 1 at once",
        "spec.components[].engineArgs (max-num-seqs",
    ),
    "a full KV cache": (
        lambda: _asked(running=(replace(STUCK, seconds=5.0),), workers=(replace(FULL, most=None, kv_usage=0.97),)),
        "engine-full", "97%", "contextLength",
    ),
    "long prompts": (
        lambda: _asked(first_token_seconds=9.0, prompt_tokens=9000.0), "slow-first-token", "long prompts", "disagg",
    ),
    "a slow engine": (
        lambda: _asked(first_token_seconds=9.0, prompt_tokens=20.0), "slow-first-token", "engine itself", "engineArgs",
    ),
    "two models under one name": (
        lambda: _asked(workers=(replace(FULL, waiting=0), WorkerFact("b/worker-0", "m", "generate", "bb"))),
        "two-models", "worker-0 and b/worker-0", "spec.model.name",
    ),
    "a file that raises": (
        lambda: _asked(failures={"internal": 4}, engine_said="mine.py:3 in generate: KeyError: 'k'"), "engine-raises",
        "KeyError", "correct mine.py:3",
    ),
    "a template that refuses": (
        lambda: _asked(failures={"validation": 4}, refused="the model's chat template refused the messages: no"),
        "chat-template", "refused the messages: no", "spec.model.chatTemplate in llama.yaml",
    ),
    "requests that are refused": (
        lambda: _asked(failures={"validation": 4}, refused="max_tokens: must be at least 1"), "bad-requests",
        "max_tokens", "contextLength",
    ),
    "a file that yields nothing": (
        lambda: _asked(answers=4, failures={"internal": 0}), "empty-answers", "without a token", "have it yield",
    ),
    "a limit of the frontend": (
        lambda: _asked(rejections={"model_full": 4}), "rejected", "room", "export DYN_HTTP_MAX_REQUESTS_PER_MODEL",
    ),
    "a time limit": (
        lambda: _asked(failures={"response_timeout": 4}, timeouts={"worker_wait": 4}), "too-slow",
        "worker_wait 4 times",
        "spec.frontend.workerWaitTimeoutSeconds",
    ),
    "a page in the hub's place": (
        lambda: _here(hub=HubFact("http://hub", error="a page", in_its_place=True)), "hub-is-none", "page", "curl -I",
    ),
    "a model that isn't cached": (
        lambda: _here(models=(ModelFact("hf://a/b", "llama", "not in the cache", True),)), "model-not-cached", "cache",
        "unset HF_HUB_OFFLINE",
    ),
    "a field that a worker refuses": (
        lambda: _here(fields=(FieldFact("spec.components[0].engineArgs", "llama", "unknown"),)), "bad-field", "unknown",
        "correct spec.components[0].engineArgs",
    ),
    "a name from another file": (
        lambda: _here(wanted=(UpFact("a", "new.yaml", "m", ""),), up=(UpFact("a", "old.yaml", "m", ""),)), "name-taken",
        "old.yaml", "dynamo down a",
    ),
    "a model's name twice in a file": (
        lambda: _here(wanted=(UpFact("a", "f", "m", ""), UpFact("b", "f", "m", ""))), "same-model-name", "URL",
        "spec.model.name of b",
    ),
    "a model's name that is up": (
        lambda: _here(wanted=(UpFact("b", "f", "m", ""),), up=(UpFact("a", "g", "m", ""),)), "same-model-name", "URL",
        "spec.model.name of b",
    ),
    "an address that nobody has": (
        lambda: _first(environment.findings(EnvironmentFacts(host="10.9.9.9", host_error="Cannot assign"))), "bad-host",
        "Cannot assign", "unset DYN_HTTP_HOST",
    ),
    "another package called dynamo": (
        lambda: _first(environment.findings(EnvironmentFacts(shadow="/here/dynamo"))), "other-dynamo", "/here/dynamo",
        "mv /here/dynamo",
    ),
    "a proxy for this machine itself": (
        lambda: _here(environment=EnvironmentFacts(proxied="http_proxy")), "loopback-proxied", "http_proxy",
        "export NO_PROXY=localhost,127.0.0.1",
    ),
    "a limit of addresses": (
        lambda: _here(address_limit=4 << 30), "address-limit", "map whole models", "ulimit -v unlimited",
    ),
    "a hub's address without a scheme": (
        lambda: _here(hub=ask({"HF_ENDPOINT": "me:pw@hub.test"}, None)), "hub-address", "lacks https://",
        "export HF_ENDPOINT=https://hub.test",
    ),
    "a misspelt variable": (
        lambda: _first(environment.findings(EnvironmentFacts(misspelt(["DYN_HTP_PORT"], {"DYN_HTTP_PORT"})))),
        "misspelt-variable", "DYN_HTTP_PORT", "unset DYN_HTP_PORT",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKAGES)
def test_first_finding_names_cause_and_command(name: str) -> None:
    """Code, cause and command; none sends back to doctor, or names a flag that `dynamo up` lacks."""
    finding, code, cause, mend = BREAKAGES[name]
    said = finding()
    assert (said.code, cause in said.cause or said.cause, mend in said.mend or said.mend) == (code, True, True)
    assert "dynamo doctor" not in said.mend
    assert "--max-" not in said.mend


@pytest.mark.parametrize(
    "facts",
    [
        replace(ASKED, workers=(FULL,), running=(replace(STUCK, seconds=0.2),)),
        replace(ASKED, answers=1),
        replace(ASKED, running=(replace(STUCK, stage="generate", tokens=900),)),
        replace(ASKED, workers=(WorkerFact("a", "m", "prefill", "aa"), WorkerFact("b", "m", "generate", "bb"))),
        replace(ASKED, workers=(WorkerFact("a", "m", "generate", "aa"), WorkerFact("b", "m", "generate", "aa"))),
    ],
    ids=["a short wait", "an answer broken off", "a long answer", "prefill and decode", "two alike"],
)
def test_what_is_well_has_no_finding(facts: TrafficFacts) -> None:
    assert not list(traffic.findings(facts))


@pytest.mark.parametrize(
    ("given", "proxied", "excepted"),
    [
        ({"http_proxy": "http://me:pw@p"}, "http_proxy", ""),
        ({"HTTP_PROXY": "http://p", "NO_PROXY": "localhost,.corp"}, "HTTP_PROXY", "NO_PROXY"),
        ({"http_proxy": "http://p", "no_proxy": "localhost, 127.0.0.1"}, "", "no_proxy"),
        ({"https_proxy": "http://p"}, "", ""),
    ],
    ids=["no exception", "another exception", "excepted", "https alone"],
)
def test_proxies_of_the_shell(given: dict[str, str], proxied: str, excepted: str) -> None:
    facts = collect(given, Path(), of_file=False)
    assert (facts.proxied, facts.excepted) == (proxied, excepted)
    assert "pw" not in str(facts)


def test_a_part_that_was_started_again_once_is_well() -> None:
    once = replace(READY[2], restarts=1, ended="killed by signal 9 (SIGKILL)")
    long_ago = replace(READY[2], restarts=5, ended="killed by signal 9 (SIGKILL)", since_seconds=9000.0)
    for part in (once, long_ago):
        assert not list(local_findings(replace(UP, parts=(*READY[:2], part))))


def test_a_server_that_is_stopped_is_said_once() -> None:
    """By the signal that has stopped it, with what lets it go on."""
    stopped = replace(READY[0], stopped=7, state="notready", reason="its process 7 is stopped by a signal")
    findings = list(local_findings(replace(UP, parts=(stopped, *READY[1:]), servers=(HUNG,))))
    assert [(finding.code, finding.mend) for finding in findings] == [("stopped", "kill -CONT 7")]


def test_commands_fit_where_it_runs() -> None:
    """A pipeline of a cluster is applied, one of this machine started again."""
    assert "dynamo down llama; dynamo up llama.yaml" in _asked(rejections={"other": 4}).mend
    assert (
        "dynamo apply FILE"
        in _first(traffic.findings(TrafficFacts("llama", " -n serving", 4, rejections={"other": 4}))).mend
    )


def test_braces_in_a_file_s_name() -> None:
    """They stay as they are, in what mends an unknown cause, too."""
    facts = LocalFacts("p", "a{b}.yaml", False, reasons=(("worker-0", "something unheard of"), ("", "nothing known")))
    assert [finding.mend for finding in local_findings(facts)] == [
        "dynamo logs worker-0 --tail 50 has the rest; then dynamo up a{b}.yaml",
        "dynamo up a{b}.yaml",
    ]
