"""What Argo CD follows: `Repository`, in git on this machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from e2e.apiserver.client import Object

from dynamo.operator.kube.resources import PIPELINES

FOLDER = "pipelines"


class Repository:
    """With the branch main."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._git("init", "--quiet", "--initial-branch=main")

    @property
    def url(self) -> str:
        """Which git clones."""
        return f"file://{self._folder}"

    def pipelines(self, specs: Mapping[str, Object]) -> str:
        """A folder of exactly these pipelines, by name; the commit."""
        files = {f"{name}.yaml": pipeline(name, spec) for name, spec in specs.items()}
        self._clear()
        kustomization = {"kind": "Kustomization", "resources": sorted(files)}
        for name, content in {**files, "kustomization.yaml": kustomization}.items():
            self.write(f"{FOLDER}/{name}", json.dumps(content))
        return self.commit()

    def without_pipelines(self) -> str:
        """The folder with nothing to apply; the commit."""
        self._clear()
        self.write(f"{FOLDER}/README.md", "There were pipelines here.\n")
        return self.commit()

    def write(self, path: str, text: str) -> None:
        """A file; not yet committed."""
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def commit(self) -> str:
        """All that has changed; the commit."""
        self._git("add", "--all")
        self._git(
            "-c", "user.name=somebody", "-c", "user.email=somebody@example.com", "commit", "--quiet", "-m", "turn"
        )
        return self._git("rev-parse", "HEAD").strip()

    def _clear(self) -> None:
        for old in (self._folder / FOLDER).glob("*"):
            old.unlink()

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=self._folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def pipeline(name: str, spec: Object) -> Object:
    """A manifest, of whatever namespace it is applied to."""
    metadata = {"name": name}
    return {"apiVersion": PIPELINES.api_version, "kind": PIPELINES.kind, "metadata": metadata, "spec": spec}
