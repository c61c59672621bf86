"""`dynamo explain ID [URL]`: where the time of one request went, or where it is now."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

import click

from dynamo.cli.monitor.targets import frontend_groups, pipeline_options

if TYPE_CHECKING:
    from dynamo.cli.cluster.kubeconfig import Target

EPILOG = """\b
Examples:
  dynamo explain 9b1f6d0c                         any frontend of this machine
  dynamo explain 9b1f6d0c http://localhost:8000   that one
  dynamo explain 9b1f6d0c --pipeline NAME         any frontend of a cluster's
  dynamo explain 9b1f6d0c -o json | jq .stages

\b
Of a request under way, the last stage is where it is now. Frontends keep
requests for ten minutes after their end. Exit codes: 0 found,
1 not found, or no frontend answers.
"""


@click.command("explain", epilog=EPILOG)
@click.argument("request_id", metavar="ID")
@click.argument("url", required=False)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format."
)
@click.option("--key-env", default="OPENAI_API_KEY", show_default=True, help="Variable that holds the API key.")
@pipeline_options
def explain(request_id: str, url: str | None, output: str, key_env: str, pipeline: str | None, target: Target) -> None:
    """Say where the time of the request ID went, or where it is now: the answer's header x-request-id has it."""
    from dynamo.cli.monitor.frontend import FrontendError

    problems: list[str] = []
    with frontend_groups(url, os.environ.get(key_env, "").strip(), pipeline, target) as groups:
        for frontend in (frontend for group in groups for frontend in group.frontends):
            try:
                raw, explanation = frontend.request(request_id)
            except FrontendError as error:
                problems.append(str(error))
                continue
            click.echo(raw if output == "json" else "\n".join(_lines(explanation)))
            return
    raise click.ClickException("\n".join(dict.fromkeys(problems)))


def _lines(explanation: Any) -> list[str]:
    from dynamo.cli.tables import table
    from dynamo.runtime.process.printable import visible

    came = datetime.datetime.fromtimestamp(explanation.received).astimezone().isoformat(" ", "milliseconds")
    outcome = f"{explanation.status} {explanation.error}".rstrip() if explanation.status else "under way"
    so_far = "" if explanation.status else " so far"
    rows = [("STAGE", "BEGINS", "TOOK", "WHAT")]
    rows += [
        (visible(stage.name), _time(stage.begins_ms), _time(stage.took_ms), visible(stage.what))
        for stage in explanation.stages
    ]
    return [
        visible(f"{explanation.endpoint} of {explanation.model}: {outcome}, {_time(explanation.took_ms)}"),
        visible(
            f"came {came}, {explanation.prompt_tokens} prompt tokens ({explanation.cached_tokens} cached), "
            f"{explanation.output_tokens} output tokens{so_far}"
        ),
        *_now(explanation),
        "",
        *table(rows),
        *_rivals(explanation),
    ]


def _now(explanation: Any) -> list[str]:
    """Return where a request under way is, and since when."""
    from dynamo.runtime.process.printable import visible

    if explanation.status or not explanation.stages:
        return []
    stage = explanation.stages[-1]
    return [visible(f"now {stage.name} for {_time(stage.took_ms)}{f': {stage.what}' if stage.what else ''}")]


def _rivals(explanation: Any) -> list[str]:
    """Return a line for each worker that was not chosen, and at what cost."""
    from dynamo.runtime.process.printable import visible

    lines = [
        visible(f"  {stage.name}: worker {other.worker} at cost {other.cost:.3f}")
        for stage in explanation.stages
        for other in stage.others
    ]
    return ["", "not chosen, the cheapest of them:", *lines] if lines else []


def _time(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms >= 10_000 else f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms"
