"""Build with a Docker daemon that reaches a registry: Docker's python image as the base, official images as such."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from e2e.images.recipes import Recipe
from e2e.kind.steps import run, succeeds

BUILD_SECONDS = 900
COPY_SECONDS = 300
PULL_SECONDS = 300


@dataclass(frozen=True)
class Docker:
    """`base` replaces the recipes' default where it is given."""

    base: str = ""

    name = "docker"

    @property
    def identity(self) -> str:
        """What an image depends on beside its recipe."""
        return self.base

    def build(self, recipe: Recipe, context: Path, settings: Path, file: Path, parent: tuple[str, Path] | None) -> None:
        """Make `recipe` out of `context` and write it to `file`; `settings` is a pip.conf, seen by the build alone."""
        arguments = dict(recipe.arguments) | ({"BASE": self.base} if self.base else {})
        if parent:
            self._run("load", "--quiet", "--input", str(parent[1]), seconds=COPY_SECONDS)
            arguments |= dict.fromkeys(recipe.parent_arguments, parent[0])
        given = [word for key, value in sorted(arguments.items()) for word in ("--build-arg", f"{key}={value}")]
        secret = ["--secret", f"id=pip,src={settings}"]
        build = [
            "build",
            *secret,
            *given,
            *(["--target", recipe.target] if recipe.target else []),
            "--file",
            str(context / recipe.file),
            "--tag",
            recipe.reference,
            str(context),
        ]
        run(["docker", *build], seconds=BUILD_SECONDS, env={"DOCKER_BUILDKIT": "1", "SOURCE_DATE_EPOCH": "0"})
        self._run("save", "--output", str(file), recipe.reference, seconds=COPY_SECONDS)

    def close(self) -> None:
        """There is nothing to end: the daemon is the user's."""

    def pull(self, reference: str, file: Path) -> None:
        """Write an official image to `file`."""
        self._run("pull", "--quiet", reference, seconds=BUILD_SECONDS)
        self._run("save", "--output", str(file), reference, seconds=COPY_SECONDS)

    def _run(self, *words: str, seconds: float) -> str:
        return run(["docker", *words], seconds=seconds)


def reaches(base: str) -> bool:
    """Whether a daemon answers that has `base`, or a registry to get it from."""
    return succeeds(["docker", "info"], seconds=20) and (
        succeeds(["docker", "image", "inspect", base], seconds=20)
        or succeeds(["docker", "pull", "--quiet", base], seconds=PULL_SECONDS)
    )
