"""`dynamo models`: which models of the hub lie on this machine, how large they are, and how they come and go."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING

import click

from dynamo.cli.tables import readable, table

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

EPILOG = """\b
Examples:
  dynamo models list
  dynamo models pull org/name               or org/name:Q4_K_M, org/name/file.gguf, org/name@revision
  dynamo models rm org/name

\b
They lie in the cache that other programs share (HF_HOME, by default ~/.cache/huggingface).
"""


@click.group("models", epilog=EPILOG)
def models() -> None:
    """List, fetch and remove models of this machine."""


@models.command("list")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Format."
)
def list_models(output: str) -> None:
    """List downloaded models and the disk that each takes."""
    repos = sorted(_cached(), key=lambda repo: repo.repo_id)
    if output == "json":
        plain = [{"model": r.repo_id, "bytes": r.size_on_disk, "path": str(r.repo_path)} for r in repos]
        click.echo(json.dumps(plain, indent=2))
    elif not repos:
        click.echo("no models are here: dynamo models pull ORG/NAME")
    else:
        rows = [("MODEL", "SIZE", "FILES"), *((r.repo_id, readable(r.size_on_disk), str(r.nb_files)) for r in repos)]
        click.echo("\n".join(table(rows)))
        click.echo(f"{readable(sum(repo.size_on_disk for repo in repos))} in all")


@models.command("pull")
@click.argument("model")
def pull(model: str) -> None:
    """Download MODEL; an interrupted download goes on where it stopped."""
    from dynamo.llm.hub.fetch import fetch
    from dynamo.runtime.errors import DynamoException

    try:
        click.echo(fetch(model))
    except DynamoException as error:
        raise click.ClickException(str(error)) from None


@models.command("rm")
@click.argument("model")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
def remove(model: str, yes: bool) -> None:
    """Remove MODEL from the cache that other programs share."""
    from huggingface_hub import scan_cache_dir

    known = {repo.repo_id: repo for repo in _cached()}
    name = model.removeprefix("hf://")
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        raise click.ClickException(
            f"{name} isn't here: {f'did you mean {close[0]}?' if close else 'dynamo models list'}"
        )
    size = readable(known[name].size_on_disk)
    if not yes:
        click.confirm(f"Remove {name} ({size}) for all programs that use it?", abort=True)
    revisions = [revision.commit_hash for revision in known[name].revisions]
    scan_cache_dir().delete_revisions(*revisions).execute()
    click.echo(f"removed {name} ({size})")


def _cached() -> list[CachedRepoInfo]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return [repo for repo in scan_cache_dir().repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []
