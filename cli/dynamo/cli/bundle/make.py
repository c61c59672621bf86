"""The steps of `dynamo bundle make`: the files of a release, images, models and wheels become one archive."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from dynamo.cli.bundle import layout, signing
from dynamo.cli.bundle.archive import SIGNATURE, SUMS, BundleWriter, writing
from dynamo.cli.bundle.contents import CONTENTS_FILE, Contents, Model
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.layout import Blob, Image
from dynamo.cli.bundle.model_layer import ModelLayer
from dynamo.cli.bundle.platform_chart import CHART, OURS, wanted_by
from dynamo.cli.bundle.read_file import content_of, sha256_of, unreadable
from dynamo.cli.bundle.saved_images import SavedImages, config_blob, saved_images

Say = Callable[[str], None]
_LLAMACPP: Final = "/worker-llamacpp:"


class Wish(NamedTuple):
    """Command line of `dynamo bundle make`, understood."""

    release: Path
    images: tuple[str, ...]
    models: tuple[str, ...]
    model_image: str
    wheels: Path | None
    key: Path | None
    is_partial: bool


class _Assembly:
    """What a bundle has so far."""

    def __init__(self, into: BundleWriter, say: Say) -> None:
        self.into = into
        self.say = say
        self.images: dict[str, tuple[Image, bytes]] = {}
        self.models: list[Model] = []

    def add_saved(self, path: Path, chosen: str = "") -> None:
        """Add all images of an archive."""
        with saved_images(path) as saved:
            written: dict[int, tuple[list[Blob], bytes]] = {}
            for name, number in saved.names(chosen):
                layers, config = written.get(number) or _parts(saved, number, self.into)
                written[number] = layers, config
                self.add(name, config, layers)

    def add(self, name: str, config: bytes, layers: list[Blob]) -> None:
        """Add an image whose layers are written."""
        layout.split_name(name)
        if name in self.images:
            raise BundleError(f"there are two images {name}: leave one out")
        described = config_blob(config, self.into)
        content = layout.manifest_of(described, layers)
        manifest = self.into.blob(len(content), [content], layout.MANIFEST_TYPE)
        self.images[name] = Image(name, manifest, described, tuple(layers)), config
        self.say(f"+ image {name}")

    def add_model(self, model: ModelLayer, onto: str) -> None:
        """Add an image with a model on top of another one's layers."""
        parent, config = self.images[onto]
        repository, tag = layout.split_name(onto)
        blob, diff_id = model.write(self.into)
        name = f"{repository}-{model.slug}:{tag}"
        self.add(name, layout.with_layer(config, diff_id, f"model {model.place}"), [*parent.layers, blob])
        self.models.append(Model(name, model.place))

    def end(self, version: str) -> None:
        """Write what makes an image layout of it, and what it holds."""
        listed = [(image, layout.read_config(config)) for image, config in self.images.values()]
        self.into.add(layout.LAYOUT_FILE, layout.LAYOUT)
        self.into.add(layout.INDEX_FILE, layout.index_of(listed))
        self.into.add(CONTENTS_FILE, Contents(version, self.models).to_json())


def make(out: Path, wish: Wish, say: Say) -> list[Model]:
    """Write a bundle; return its models. BundleError where a part is missing, damaged or there twice.

    All that can be refused is looked at first: writing takes minutes.
    """
    files = _release_files(wish.release)
    chart, wheels = _chart(files), _wheels(wish.wheels)
    models = [ModelLayer(*_named(given)) for given in wish.models]
    archives = [(file, "") for file in files if file.suffix == ".tar"] + [_named(given) for given in wish.images]
    names = [name for path, chosen in archives for name in _names(path, chosen)]
    onto = _model_image(wish, names) if models else ""
    if not wish.is_partial:
        _require(wanted_by(chart), names)
    _signature(b"", wish.key)
    with writing(out) as into:
        made = _Assembly(into, say)
        for file in files:
            if file.suffix != ".tar":
                _add_file(into, f"{'charts' if file.suffix == '.tgz' else 'release'}/{file.name}", file)
        for path, chosen in archives:
            made.add_saved(path, chosen)
        for model in models:
            made.add_model(model, onto)
        for wheel in wheels:
            _add_file(into, f"wheels/{wheel.name}", wheel)
        made.end(_version(chart))
        into.end(_signature(into.sums(), wish.key))
    return made.models


def _named(given: str) -> tuple[Path, str]:
    """Return a path, and the name that was given with it."""
    name, _, path = ("", "", given) if Path(given).exists() else given.rpartition("=")
    return Path(path), name


def _names(path: Path, chosen: str) -> list[str]:
    with saved_images(path) as saved:
        return [name for name, _ in saved.names(chosen)]


def _parts(saved: SavedImages, number: int, into: BundleWriter) -> tuple[list[Blob], bytes]:
    return saved.layers(number, into), saved.config(number)


def _release_files(folder: Path) -> list[Path]:
    """Return the files of a release, each as its checksums have it."""
    try:
        lines = (folder / SUMS).read_text("ascii", "replace").splitlines()
    except OSError:
        raise BundleError(
            f"{folder} has no {SUMS}, so it is no release: make one with `make release ARGS=--images`, or name another "
            "folder with --release"
        ) from None
    files = []
    for line in lines:
        digest, _, name = line.partition("  ")
        file = folder / name
        if Path(name).name != name or not file.is_file() or sha256_of(file) != digest:
            raise BundleError(f"{file} isn't what {SUMS} says: get the release again")
        files.append(file)
    signature = folder / SIGNATURE
    return [*files, folder / SUMS, *([signature] if signature.is_file() else [])]


def _chart(files: Iterable[Path]) -> Path:
    chart = next((file for file in files if file.suffix == ".tgz" and file.name.startswith(f"{CHART}-")), None)
    if chart is None:
        raise BundleError(f"the release has no chart {CHART}-VERSION.tgz: get it again")
    return chart


def _version(chart: Path) -> str:
    return chart.name.removeprefix(f"{CHART}-").removesuffix(".tgz")


def _model_image(wish: Wish, images: Sequence[str]) -> str:
    """Return the image that models are put on: the one named, else the release's of llama.cpp."""
    wanted = layout.without_registry(wish.model_image)
    chosen = next((name for name in images if name == wanted or (not wanted and _LLAMACPP in name)), None)
    if chosen is None:
        missing = f"--model-image {wanted} isn't in the bundle" if wanted else "there is no image of llama.cpp's worker"
        raise BundleError(f"{missing} to put models on: name one of {', '.join(images) or 'those of --image'}")
    return chosen


def _wheels(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise BundleError(f"{folder} has no wheels: `pip download --dest {folder} …` puts them there")
    return wheels


def _require(wanted: dict[str, str], images: Iterable[str]) -> None:
    """Refuse a bundle from which the platform could not be installed."""
    missing = {name: source for name, source in wanted.items() if name not in images}
    if missing:
        source = next(iter(missing.values()))
        ours = any(name.startswith(OURS) for name in missing)
        way = (
            "make the release with images: make release ARGS=--images"
            if ours
            else f"for example docker pull {source} && docker save -o image.tar {source}, then --image image.tar"
        )
        raise BundleError(
            f"the chart asks for {', '.join(missing)}, which the bundle doesn't have: {way}. "
            "Or leave them out with --partial"
        )


def _add_file(into: BundleWriter, name: str, file: Path) -> None:
    try:
        size = file.stat().st_size
    except OSError as error:
        raise unreadable(file, error) from None
    into.stream(name, size, content_of(file))


def _signature(sums: bytes, key: Path | None) -> bytes | None:
    """Return the signature of the checksums; None where no key is given."""
    if key is None:
        return None
    with tempfile.TemporaryDirectory(prefix="dynamo-bundle-") as folder:
        file = Path(folder) / SUMS
        file.write_bytes(sums)
        try:
            return signing.sign(file, key).read_bytes()
        except signing.SigningError as error:
            raise BundleError(str(error)) from None
