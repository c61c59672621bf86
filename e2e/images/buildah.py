"""Build with buildah, in a store of its own: no daemon, no registry, the network of this machine for pip."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.images import debian
from e2e.images.pip_settings import CERTIFICATES
from e2e.images.recipes import Recipe
from e2e.kind.mounts import unmount_below
from e2e.kind.steps import StepError, run

BUILD_SECONDS = 900
COPY_SECONDS = 300


@dataclass(frozen=True)
class Buildah:
    """`store` keeps layers between builds; `bases` are archives that are brought into it."""

    store: Path
    bases: debian.Bases

    name = "buildah"

    @property
    def identity(self) -> str:
        """What an image depends on beside its recipe."""
        return self.bases.digest

    def build(self, recipe: Recipe, context: Path, settings: Path, file: Path, parent: tuple[str, Path] | None) -> None:
        """Make `recipe` out of `context` and write it to `file`; `settings` is a pip.conf, seen by the build alone."""
        self._bring_in(debian.BASE, self.bases.base)
        self._bring_in(debian.BUILDER, self.bases.builder)
        if parent:
            self._bring_in(*parent)
        arguments = {"BASE": debian.BASE, "BUILDER": debian.BUILDER, **recipe.arguments}
        arguments |= dict.fromkeys(recipe.parent_arguments, parent[0]) if parent else {}
        self._run(
            *["bud", "--layers", "--timestamp", "0", "--network", "host", "--pull-never"],
            *["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro", "--secret", f"id=pip,src={settings}"],
            *_build_arguments(arguments),
            *(["--target", recipe.target] if recipe.target else []),
            *["--file", str(context / recipe.file), "--tag", recipe.reference, str(context)],
            seconds=BUILD_SECONDS,
        )
        self._run(
            "push", "--quiet", recipe.reference, f"docker-archive:{file}:{recipe.reference}", seconds=COPY_SECONDS
        )

    def clear(self) -> None:
        """Remove the containers that a killed build left."""
        self._run("rm", "--all", seconds=60)

    def close(self) -> None:
        """Leave nothing mounted: the store is a folder that its owner may delete."""
        unmount_below(self.store)

    def _bring_in(self, reference: str, archive: Path) -> None:
        """Have an archive's image in the store, under its name, unless it is there."""
        wanted = debian.config_of(archive).removesuffix(".json")
        known = self._run("images", "--no-trunc", "--quiet", "--filter", f"reference={reference}", seconds=30)
        if wanted not in known:
            self._run("pull", "--quiet", f"docker-archive:{archive}", seconds=COPY_SECONDS)

    def _run(self, *words: str, seconds: float) -> str:
        return run(["buildah", "--root", self.store, "--runroot", self.store / "run", *words], seconds=seconds)


def start(store: Path, folder: Path) -> Buildah:
    """Ready to build; `folder` keeps the bases' archives."""
    if shutil.which("buildah") is None:
        raise StepError(
            "neither a Docker daemon answers nor is buildah there: start Docker, or apt-get install buildah"
        )
    store.mkdir(parents=True, exist_ok=True)
    builder = Buildah(store, debian.bases(folder))
    builder.clear()
    return builder


def _build_arguments(arguments: Mapping[str, str]) -> list[str]:
    return [word for key, value in sorted(arguments.items()) for word in ("--build-arg", f"{key}={value}")]
