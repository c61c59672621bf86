"""The other side: an environment of its own with ai-dynamo, made once and used again.

`ai-dynamo` asks for more than its frontend and mocker import: a newer certifi than some indexes have, a simulator
that must be compiled, transformers. None of it is on the path that is measured (both are Rust in
`ai-dynamo-runtime`), so it's installed without its dependencies, plus the few packages that it does import.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.model import cache_root
from bench.processes import BenchError

VERSION = "1.6.1"
PACKAGES = (f"ai-dynamo=={VERSION}", f"ai-dynamo-runtime=={VERSION}")
# What `dynamo.frontend` and `dynamo.mocker` import when they start; found by starting them.
IMPORTED = ("msgspec>=0.19", "packaging", "pydantic>=2.10.6,<=2.13.5", "pyyaml", "uvloop>=0.21")


def peer_folder() -> Path:
    """The environment's place, outside the repository."""
    return cache_root() / f"peer-{VERSION}"


def peer_python() -> Path:
    """The Python that has ai-dynamo; makes the environment on the first call."""
    folder = peer_folder()
    python = folder / "bin" / "python"
    done = folder / ".complete"
    if not done.exists():
        print(f"making the environment of ai-dynamo {VERSION} in {folder}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _make(folder, python)
        _check(python)
        done.touch()
    return python


def peer_environment() -> dict[str, str]:
    """The variables of a peer process: nothing that would show it our packages."""
    return {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DYN_", "ETCD_", "NATS_", "VIRTUAL_ENV"))
    }


def _make(folder: Path, python: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", *PACKAGES])
    _run([*pip, *IMPORTED])


def _check(python: Path) -> None:
    for module in ("dynamo.frontend", "dynamo.mocker"):
        _run([str(python), "-m", module, "--help"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, env=peer_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)} failed:\n{(done.stderr or done.stdout)[-1500:]}")


if __name__ == "__main__":
    print(peer_python())
