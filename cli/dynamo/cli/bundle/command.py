"""`dynamo bundle make|verify|push`: the platform, its images and models for a network without a way out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamo.cli.bundle.archive import Bundle

EPILOG = """\b
Examples:
  dynamo bundle make dynamo.tar --release build/release --image etcd.tar --image nats.tar
  dynamo bundle make dynamo.tar --image etcd.tar --image nats.tar --model gemma.gguf --key cosign.key
  dynamo bundle verify dynamo.tar --key cosign.pub
  dynamo bundle push dynamo.tar registry.example.com/dynamo
  dynamo install --bundle dynamo.tar --set global.imageRegistry=registry.example.com/dynamo

\b
A bundle is a tar archive and an OCI image layout: `tar -xf` unpacks it, `sha256sum --check SHA256SUMS` checks it,
and skopeo or oras read its images.
"""
_SOURCES = "what `docker save` or `podman save` wrote"

_key = click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False),
    help="Public key: check who made the checksums, by cosign.",
)  # fmt: skip
_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


@click.group("bundle", epilog=EPILOG)
def bundle() -> None:
    """Put all that an installation needs into one archive, check it, and push its images."""


@bundle.command("make", epilog=EPILOG)
@_file
@click.option(
    "--release", type=click.Path(path_type=Path, file_okay=False), default=Path("build/release"), show_default=True,
    help="Folder of a release with images (make release ARGS=--images).",
)  # fmt: skip
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="[NAME:TAG=]ARCHIVE",
    help=f"Another image: {_SOURCES}. May be repeated.",
)
@click.option(
    "--model", "models", multiple=True, metavar="[NAME=]PATH",
    help="Model as a file or folder: an image with it below /models is made; repeatable.",
)  # fmt: skip
@click.option("--model-image", default="", metavar="NAME:TAG", help="Image models are put on. Default: llama.cpp's.")
@click.option(
    "--wheels", type=click.Path(path_type=Path, file_okay=False),
    help="Folder of wheels for machines without an index (pip download).",
)  # fmt: skip
@click.option(
    "--key", type=click.Path(path_type=Path, dir_okay=False),
    help="cosign's private key: signs the checksums; COSIGN_PASSWORD opens it.",
)  # fmt: skip
@click.option("--partial", is_flag=True, help="Leave out images that the chart asks for.")
def make(
    file: Path, release: Path, images: tuple[str, ...], models: tuple[str, ...], model_image: str,
    wheels: Path | None, key: Path | None, partial: bool,
) -> None:  # fmt: skip
    """Write FILE from a release, images, models and wheels that lie here."""
    from dynamo.cli.bundle.make import Wish, make
    from dynamo.cli.tables import readable

    made = make(file, Wish(release, images, models, model_image, wheels, key, partial), _say)
    click.echo(f"{file}: {readable(file.stat().st_size)}")
    _tell_models(made)


@bundle.command("verify", epilog=EPILOG)
@_file
@_key
def verify(file: Path, key: Path | None) -> None:
    """Compare every byte of FILE with its checksums, and list what it holds."""
    from dynamo.cli.bundle.archive import Bundle
    from dynamo.cli.bundle.contents import images_of, read_contents
    from dynamo.cli.bundle.layout import machine_of, read_config

    with Bundle(file) as opened:
        verified(opened, key)
        contents = read_contents(opened)
        click.echo(f"dynamo {contents.version}")
        for image in images_of(opened):
            config = read_config(opened.read(image.config.file))
            click.echo(f"  image {image.name} {machine_of(config)} {image.manifest.digest}")
        for name in opened.names:
            if name.startswith(("charts/", "wheels/")):
                click.echo(f"  {name}")
        _tell_models(contents.models)


@bundle.command("push", epilog=EPILOG)
@_file
@click.argument("registry")
@_key
@click.option("--plain-http", is_flag=True, help="Speak HTTP without TLS, in a network that is yours.")
@click.option("--ca-file", type=click.Path(dir_okay=False), help="Authority of the registry's certificate.")
def push(file: Path, registry: str, key: Path | None, plain_http: bool, ca_file: str | None) -> None:
    """Push the images of FILE to REGISTRY, as HOST[:PORT][/PATH]; signed in by `docker login` or `podman login`."""
    from dynamo.cli.bundle.archive import Bundle
    from dynamo.cli.bundle.push import push, read_address
    from dynamo.cli.bundle.registry import Registry
    from dynamo.cli.bundle.registry_login import find_login
    from dynamo.cli.tables import readable

    address = read_address(registry)
    with Bundle(file) as opened:
        verified(opened, key)
        with Registry(address, find_login(address.host, address.path), plain_http=plain_http, ca_file=ca_file) as there:
            sent = push(opened, address, there, _say)
    click.echo(f"sent {readable(sent)}. Next: dynamo install --bundle {file} --set global.imageRegistry={address}")


def verified(bundle: Bundle, key: Path | None) -> None:
    """Check a bundle whole, and its signature where a key is given. BundleError where it isn't as it was made."""
    from dynamo.cli.bundle.contents import check_signature
    from dynamo.cli.tables import readable

    if key is not None:
        with tempfile.TemporaryDirectory(prefix="dynamo-bundle-") as folder:
            check_signature(bundle, key, Path(folder))
    size = readable(sum(bundle.size(name) for name in bundle.names))
    _say(f"+ checks {bundle.path}: {size}")
    total = bundle.verify()
    whose = f"signed by the owner of {key}" if key else "the signature wasn't checked: --key names a public key"
    _say(f"+ {bundle.path}: {len(bundle.names)} files, {readable(total)}, each as its checksum says; {whose}")


def _tell_models(models: Sequence[tuple[str, str]]) -> None:
    for image, path in models:
        click.echo(
            f"  model {path} is in image {image}: its component says `image: REGISTRY/{image}`, its `source` file://{path}"
        )


def _say(text: str) -> None:
    click.echo(text, err=True)
