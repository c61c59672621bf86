"""Make the images that are missing, as one docker-archive each, named by what it is made of."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.images import audit, buildah, docker, pip_settings, programs
from e2e.images.context import digest_of, snapshot
from e2e.images.recipes import Catalogue, Program, Recipe, default_base, digest, read
from e2e.kind.places import REPOSITORY, Places
from e2e.kind.steps import StepError, say, step

LOCK_SECONDS = 1200
KEPT = 3
"""Archives of one image that are kept: the newest, and those of other checkouts."""
_FORMAT = 1
"""Counts changes of how an archive is written."""


@dataclass(frozen=True)
class Made:
    """An image that is there: its short name, its full reference, and the archive that holds it."""

    name: str
    reference: str
    file: Path


@dataclass(frozen=True)
class Workshop:
    """Everything that one run needs."""

    places: Places
    tool: buildah.Buildah | docker.Docker
    context: Path
    settings: Path
    content: str
    """The context's digest."""

    @property
    def folder(self) -> Path:
        """Where the archives lie."""
        return self.places.cache / "images"


def make_images(places: Places, names: Sequence[str] = (), tool: str = "") -> list[Made]:
    """Have the images `names` (all of them if there are none) in `places.cache`, in order; `StepError` says why not.

    `tool` is `docker` or `buildah`; without one, docker where a daemon has the base or can pull it. One run at a time,
    others wait.
    """
    catalogue = read(REPOSITORY)
    unknown = set(names) - set(catalogue.names)
    if unknown:
        raise StepError(f"there is no image {', '.join(sorted(unknown))}: use {', '.join(catalogue.names)}")
    folder = places.cache / "images"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / ".lock"), _workshop(places, tool) as workshop:
        return [_image(workshop, catalogue, name) for name in names or catalogue.names]


def _image(workshop: Workshop, catalogue: Catalogue, name: str) -> Made:
    for program in catalogue.programs:
        if program.name == name:
            return _program(workshop, program)
    (recipe,) = [recipe for recipe in catalogue.recipes if recipe.name == name]
    parent = _image(workshop, catalogue, recipe.parent) if recipe.parent else None
    return _recipe(workshop, recipe, parent)


def _recipe(workshop: Workshop, recipe: Recipe, parent: Made | None) -> Made:
    name = digest(
        format=_FORMAT,
        tool=workshop.tool.name,
        identity=workshop.tool.identity,
        reference=recipe.reference,
        arguments=dict(recipe.arguments),
        parent=parent.file.name if parent else "",
        context=workshop.content if recipe.holds_source else "",
        file="\n".join((workshop.context / source).read_text() for source in recipe.sources),
        target=recipe.target,
    )
    made = Made(recipe.name, recipe.reference, workshop.folder / f"{recipe.name}-{name}.tar")
    given = (parent.reference, parent.file) if parent else None
    with _writing(made) as part:
        if part:
            workshop.tool.build(recipe, workshop.context, workshop.settings, part, given)
            if not recipe.is_stock:
                _check(made, part, pip_settings.hosts(workshop.settings.read_text()))
    return made


def _check(made: Made, archive: Path, hosts: Iterable[str]) -> None:
    found = audit.problems(archive, hosts)
    if found:
        raise StepError(f"image {made.name} breaks what images/README.md promises: {'; '.join(found)}")


def _program(workshop: Workshop, program: Program) -> Made:
    if isinstance(workshop.tool, docker.Docker):
        name = f"{program.name}-{digest(reference=program.reference)}"
        made = Made(program.name, program.reference, workshop.folder / f"{name}.tar")
        with _writing(made) as part:
            if part:
                workshop.tool.pull(program.reference, part)
        return made
    binary = programs.find(program, workshop.places)
    made = Made(program.name, program.reference, workshop.folder / f"{programs.name_of(program, binary)}.tar")
    with _writing(made) as part:
        if part:
            programs.make(program, binary, part)
    return made


@contextmanager
def _writing(made: Made) -> Iterator[Path | None]:
    """A file to write the archive to, which then takes its place; None where the archive is there already."""
    if made.file.exists():
        os.utime(made.file)
        yield None
        return
    part = made.file.with_name(f".{made.file.name}.part")
    part.unlink(missing_ok=True)
    try:
        with step(f"image {made.name}"):
            yield part
            part.rename(made.file)
    finally:
        part.unlink(missing_ok=True)
    for old in outdated(made.file.parent.glob(f"{made.name}-{'[0-9a-f]' * 16}.tar")):
        old.unlink()


def outdated(archives: Iterable[Path]) -> list[Path]:
    """All but the `KEPT` that were asked for last."""
    return sorted(archives, key=lambda archive: archive.stat().st_mtime, reverse=True)[KEPT:]


@contextmanager
def _workshop(places: Places, tool: str) -> Iterator[Workshop]:
    """The tool, a copy of the source and the index's settings; the copy and the settings end with it."""
    chosen = _tool(places, tool)
    with tempfile.TemporaryDirectory(prefix="dynamo-images-") as work:
        context, settings = Path(work) / "context", Path(work) / "pip.conf"
        snapshot(REPOSITORY, context)
        content = digest_of(context)
        for source in {source for recipe in read(REPOSITORY).recipes for source in recipe.sources}:
            (context / source).parent.mkdir(parents=True, exist_ok=True)
            (context / source).write_text((REPOSITORY / source).read_text())
        settings.touch(mode=0o600)
        settings.write_text(pip_settings.of_this_machine())
        try:
            yield Workshop(places, chosen, context, settings, content)
        finally:
            chosen.close()


def _tool(places: Places, tool: str) -> buildah.Buildah | docker.Docker:
    base = os.environ.get("DYNAMO_IMAGES_BASE", "")
    if tool == "docker" or (not tool and docker.reaches(base or default_base(REPOSITORY))):
        say(f"images: docker, {places.cache / 'images'}")
        return docker.Docker(base)
    if tool not in ("", "buildah"):
        raise StepError(f"{tool} can't build images here: use docker or buildah")
    say(f"images: buildah{'' if tool else ' (no Docker that has or can pull the base)'}, {places.cache / 'images'}")
    return buildah.start(places.cache / "buildah", places.cache / "images")


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock; another run may take minutes, so wait for it, with a limit."""
    until = time.monotonic() + LOCK_SECONDS
    with lock.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise StepError(f"another run has been making images for {LOCK_SECONDS} s; end it") from error
                time.sleep(0.5)
            else:
                break
        yield
