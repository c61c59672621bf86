"""`dynamo clean`: removes what earlier runs left, and says what lies where."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import click

from dynamo.cli.local.state import is_running, state_home
from dynamo.cli.tables import readable

EPILOG = """\b
What lies where:
  ~/.local/state/dynamo   logs and data of each pipeline that was ever up (XDG_STATE_HOME)
  ~/.cache/dynamo         files that are made of models: made again when needed (DYN_CACHE_DIR)
  ~/.cache/huggingface    downloaded models, shared with other programs (HF_HOME): dynamo models rm

\b
Examples:
  dynamo clean --dry-run  what would go, and how much that is
  dynamo clean            logs and data of pipelines that aren't up
  dynamo clean --cache    and ~/.cache/dynamo
"""


class Leftover(NamedTuple):
    """One thing that can go."""

    path: Path
    size: int


@click.command("clean", epilog=EPILOG)
@click.option("--cache", is_flag=True, help="Also remove what was made of models; it is made again when needed.")
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
def clean(cache: bool, dry_run: bool) -> None:
    """Remove logs and data of pipelines that aren't up. Downloaded models stay: `dynamo models rm`."""
    leftovers = _of_runs(state_home(os.environ))
    if cache:
        from dynamo.llm.models.file_cache import default_root

        root = default_root()
        leftovers += [Leftover(root, size_of(root))] if root.is_dir() and not root.is_symlink() else []
    for leftover in leftovers:
        if not dry_run:
            _remove(leftover.path)
        click.echo(f"{'would remove' if dry_run else 'removed'} {leftover.path} ({readable(leftover.size)})")
    click.echo(f"{readable(sum(leftover.size for leftover in leftovers))} in all")


def _of_runs(home: Path) -> list[Leftover]:
    """Return folders of pipelines that nobody runs, known by their lock, and logs of `up -d`."""
    if not home.is_dir():
        return []
    entries = sorted(entry for entry in home.iterdir() if not entry.is_symlink())
    folders = [e for e in entries if (e / "lock").is_file() and not is_running(e)]
    logs = [e for e in entries if e.name.endswith(".up.log") and not is_running(home / e.name.removesuffix(".up.log"))]
    return [Leftover(path, size_of(path)) for path in (*folders, *logs)]


def size_of(path: Path) -> int:
    """Return the bytes below a path; links count for nothing, since they are others' files."""
    if path.is_file() and not path.is_symlink():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            total += status.st_size
    return total


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise click.ClickException(f"can't remove {error.filename or path}: {error.strerror}") from None
