"""`dynamo doctor`: what is wrong with this machine, a cluster or one pipeline, and the command that mends it."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo.cli.commands.cluster_options import cluster_options, complete_pipeline

if TYPE_CHECKING:
    from dynamo.cli.cluster.client import Cluster
    from dynamo.cli.cluster.kubeconfig import Target
    from dynamo.cli.diagnosis.findings import Finding, Report
    from dynamo.operator.api.v1alpha1 import DynamoPipeline

EPILOG = """\b
Examples:
  dynamo doctor                        this machine
  dynamo doctor pipeline.yaml          and what the pipelines of a file need of it
  dynamo doctor llama                  why a pipeline that is up here doesn't serve
  dynamo doctor --cluster              the cluster of the kubeconfig
  dynamo doctor pipeline.yaml --cluster  and what the pipelines of a file need of it
  dynamo doctor llama -n serving       why a pipeline of the cluster isn't Ready
  dynamo doctor -o json | jq -r '.findings[].mend'

\b
Exit codes: 0 nothing is wrong, 1 findings, 2 it couldn't look (or usage).
It changes nothing, and never prints a token.
"""


@click.command("doctor", epilog=EPILOG)
@click.argument("name", required=False, shell_complete=complete_pipeline)
@click.option("--cluster", "of_cluster", is_flag=True, help="Look at the cluster; also by -n, --context, --kubeconfig.")
@cluster_options()
@click.option("--offline", is_flag=True, help="Ask no model hub.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format.")
def doctor(name: str | None, of_cluster: bool, target: Target, offline: bool, output: str) -> None:
    """Say what is wrong, why, and which command mends it.

    NAME is a pipeline, or a pipeline file. Without NAME it looks at this machine, or with --cluster at a cluster.
    """
    from dynamo.cli.diagnosis.findings import as_lines, as_plain

    in_cluster = of_cluster or any(target.__dict__.values())
    report = _of_cluster(name, target) if in_cluster else _of_machine(name, offline)
    if output == "json":
        click.echo(json.dumps(as_plain(report), ensure_ascii=False, indent=2))
    else:
        click.echo("\n".join(as_lines(report)))
    raise SystemExit(report.exit_code)


def _of_machine(name: str | None, offline: bool) -> Report:
    from dynamo.cli.commands.upkeep.variables import misspelt_in, unreadable
    from dynamo.cli.diagnosis import devices, machine
    from dynamo.cli.diagnosis.findings import report_of
    from dynamo.cli.local.facts import hub
    from dynamo.cli.local.facts.machine import closed_state, collect, has_state
    from dynamo.cli.local.state import state_home

    if name and not Path(name).exists():
        if folder := closed_state(state_home(os.environ), name):
            return report_of([f"pipeline {name} on this machine"], [machine.closed(folder)])
        if has_state(state_home(os.environ), name):
            return _of_local_pipeline(name)
        elsewhere = f"of a cluster: add -n NAMESPACE; of a request: dynamo explain {name}"
        sentence = f"no pipeline {name} was up on this machine, and it is no file ({elsewhere})"
        return report_of([], [], [sentence])
    pipelines, broken = _read(name)
    file = Path(name).resolve() if name else None
    facts = collect(pipelines, os.environ, file.parent if file else Path(), str(file or ""))
    variables = replace(facts.environment, misspelt=misspelt_in(os.environ), unreadable=unreadable())
    facts = replace(facts, environment=variables)
    if not offline:
        facts = replace(facts, hub=hub.ask(os.environ, hub.saved_token()))
    looked = [
        "Python",
        "PATH",
        "variables",
        "folders and disks",
        "ports",
        "engines",
        "models",
        "etcd and NATS",
        "limits",
    ]
    looked.append(devices.looked_at(facts.gpu))
    looked += [] if offline else [f"{facts.hub.url} ({'with' if facts.hub.token else 'without'} a token)"]
    findings = [*broken, *machine.findings(facts)]
    return report_of(looked, [_with_file(f, name) for f in findings] if name else findings)


def _with_file(finding: Finding, name: str) -> Finding:
    """Return a finding whose commands can be pasted: they name the file that was looked at."""
    return finding._replace(mend=re.sub(r"\bFILE\b", lambda _: name, finding.mend))


def _of_local_pipeline(name: str) -> Report:
    from dynamo.cli.diagnosis.file_fields import name_findings
    from dynamo.cli.diagnosis.findings import report_of
    from dynamo.cli.diagnosis.local_pipeline import local_findings
    from dynamo.cli.local.facts.environment import are_up
    from dynamo.cli.local.facts.pipeline import collect

    facts = collect(name, os.environ, time.time())
    requests, unseen = _local_traffic(name)
    if facts.alive:
        up = are_up(os.environ)
        requests += name_findings([fact for fact in up if fact.name == name], up)
    looked = [f"pipeline {name} on this machine", *(["its etcd and NATS"] if facts.servers else [])]
    return report_of([*looked, *([] if unseen else ["its requests"])], [*local_findings(facts), *requests], unseen)


def _read(name: str | None) -> tuple[list[DynamoPipeline], list[Finding]]:
    """Return the pipelines of a file, or what is wrong with it."""
    from dynamo.cli.commands.files.pipeline_files import read_pipelines
    from dynamo.cli.diagnosis.findings import Finding
    from dynamo.operator.api.load import PipelineFileError

    if name is None:
        return [], []
    try:
        return read_pipelines(Path(name)), []
    except PipelineFileError as error:
        mend = f"correct it; dynamo validate {name}"
        # A misspelt name is the cause of what is missing then.
        problems = sorted(map(str, error.problems), key=lambda problem: "is not a field" not in problem)
        return [], [Finding("bad-file", f"{name} isn't valid", problem, mend) for problem in problems]


def _local_traffic(name: str) -> tuple[list[Finding], list[str]]:
    """Return why requests of a pipeline fail or are slow, and why its frontend couldn't be asked, if it couldn't."""
    from dynamo.cli.diagnosis import traffic
    from dynamo.cli.local.facts.traffic import of_run
    from dynamo.cli.local.state import is_running, read_state, running, state_home

    folder = state_home(os.environ) / name
    state = read_state(folder)
    if state is None or not state.url or not is_running(folder):
        return [], []
    facts = of_run(state, [other for other, alive in running(state_home(os.environ)) if alive])
    return ([], [facts]) if isinstance(facts, str) else (list(traffic.findings(facts)), [])


def _of_cluster(name: str | None, target: Target) -> Report:
    from dynamo.cli.cluster.client import connect
    from dynamo.cli.cluster.diagnosis_facts import cluster_facts, try_to
    from dynamo.cli.diagnosis import cluster as rules
    from dynamo.cli.diagnosis.findings import report_of

    unseen: list[str] = []
    wanted, broken = _read(name) if name and Path(name).exists() else ([], [])
    cluster = try_to(lambda: connect(target), unseen)
    if cluster is None:
        return report_of([], broken, unseen)
    if name and not (wanted or broken):
        return _of_cluster_pipeline(cluster, name, unseen)
    seen = try_to(lambda: cluster_facts(cluster, wanted), unseen)
    if seen is None:
        return report_of([], broken, unseen)
    looked = [
        "rights", "CRD", "nodes", "DNS", "operator", "webhooks", "images", "policies", "quotas", "GPUs", "storage",
        "Pod Security", "clocks",
    ]  # fmt: skip
    return report_of([f"{cluster.label}: {', '.join(looked)}"], [*broken, *rules.findings(seen[0])], seen[1])


def _of_cluster_pipeline(cluster: Cluster, name: str, unseen: list[str]) -> Report:
    from dynamo.cli.cluster.diagnosis_facts import pipeline_facts, traffic_facts, try_to
    from dynamo.cli.cluster.pipelines.status import pipeline_called
    from dynamo.cli.diagnosis import traffic
    from dynamo.cli.diagnosis.findings import report_of
    from dynamo.cli.diagnosis.pipeline import cluster_findings

    facts = try_to(lambda: pipeline_facts(cluster, pipeline_called(cluster, cluster.namespace, name)), unseen)
    requests = traffic_facts(cluster, name) if facts else None
    findings = [*(cluster_findings(facts) if facts else ()), *(traffic.findings(requests) if requests else ())]
    looked = [f"pipeline {name} in namespace {cluster.namespace}", *(["its requests"] if requests else [])]
    return report_of(looked, findings, unseen)
