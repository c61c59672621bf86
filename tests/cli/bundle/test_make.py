"""`dynamo bundle make` and `verify`: what goes in, and what is refused by name."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from tests.cli.bundle.conftest import OURS, layer, save

from dynamo.cli.bundle import platform_chart
from dynamo.cli.bundle.archive import SUMS, Bundle
from dynamo.cli.bundle.contents import Model, images_of, read_contents
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.model_layer import ModelLayer

Run = Callable[..., Result]
GEMMA = "dynamo-pipelines/worker-llamacpp-gemma-3:0.1.0"


def test_a_whole_bundle(made: Path, run: Run) -> None:
    """Images under the names that the chart asks for, charts, the release's other files; layers once."""
    with Bundle(made) as bundle:
        names = [image.name for image in images_of(bundle)]
        assert {*names[:-2]} == {f"dynamo-pipelines/{name}:0.1.0" for name in OURS}
        assert names[-2:] == ["coreos/etcd:v3.6.16", "nats:2.12.1-alpine"]
        assert {"charts/dynamo-platform-0.1.0.tgz", "charts/dynamo-pipeline-0.1.0.tgz"} <= {*bundle.names}
        assert f"release/{SUMS}" in bundle.names
        base = hashlib.sha256(layer(b"base")).hexdigest()
        assert bundle.names.count(f"blobs/sha256/{base}") == 1
    done = run("verify", made)
    assert done.exit_code == 0
    assert "image coreos/etcd:v3.6.16 linux/amd64 sha256:" in done.output
    assert "the signature wasn't checked" in done.output


def test_it_is_an_image_layout(made: Path) -> None:
    """As any other program reads it: index, manifests, configurations and layers belong together."""
    with Bundle(made) as bundle:
        index = json.loads(bundle.read("index.json"))
        for item in index["manifests"]:
            manifest = json.loads(bundle.read(f"blobs/{item['digest'].replace(':', '/')}"))
            config = json.loads(bundle.read(f"blobs/{manifest['config']['digest'].replace(':', '/')}"))
            assert item["platform"] == {"architecture": "amd64", "os": "linux"}
            assert config["rootfs"]["diff_ids"] == [part["digest"] for part in manifest["layers"]]


def test_a_model_becomes_an_image(release: Path, stock: list[str], run: Run, tmp_path: Path) -> None:
    """llama.cpp's image with a layer more: the file at /models, readable for everybody."""
    model = tmp_path / "Gemma 3.gguf"
    model.write_bytes(b"GGUF" * 500)
    done = run("make", tmp_path / "b.tar", "--release", release, *stock, "--model", model)
    assert f"model /models/Gemma 3.gguf is in image {GEMMA}" in done.output
    with Bundle(tmp_path / "b.tar") as bundle:
        bundle.verify()
        assert read_contents(bundle).models == [Model(GEMMA, "/models/Gemma 3.gguf")]
        images = {image.name: image for image in images_of(bundle)}
        parent, image = images["dynamo-pipelines/worker-llamacpp:0.1.0"], images[GEMMA]
        assert image.layers[:-1] == parent.layers
        config = json.loads(bundle.read(image.config.file))
        assert config["rootfs"]["diff_ids"][-1] == image.layers[-1].digest
        with tarfile.open(fileobj=io.BytesIO(bundle.read(image.layers[-1].file))) as archive:
            members = {member.name: member for member in archive}
            assert members["models"].isdir()
            assert members["models/Gemma 3.gguf"].mode == 0o644
            assert archive.extractfile("models/Gemma 3.gguf").read() == model.read_bytes()  # type: ignore[union-attr]


def test_a_folder_of_the_hubs_cache(release: Path, stock: list[str], run: Run, tmp_path: Path) -> None:
    """Links to files are followed; names of any length and depth stay."""
    folder, store = tmp_path / "tiny", tmp_path / "store"
    deep = folder / ("x" * 90) / "config.json"
    deep.parent.mkdir(parents=True)
    store.write_bytes(b"weights")
    (folder / "model.safetensors").symlink_to(store)
    deep.write_text("{}")
    words = ["--model", folder, "--model-image", "dynamo-pipelines/worker:0.1.0"]
    done = run("make", tmp_path / "b.tar", "--release", release, *stock, *words)
    assert done.exit_code == 0, done.output
    with Bundle(tmp_path / "b.tar") as bundle:
        image = images_of(bundle)[-1]
        assert image.name == "dynamo-pipelines/worker-tiny:0.1.0"
        with tarfile.open(fileobj=io.BytesIO(bundle.read(image.layers[-1].file))) as archive:
            assert archive.extractfile("models/tiny/model.safetensors").read() == b"weights"  # type: ignore[union-attr]
            assert f"models/tiny/{'x' * 90}/config.json" in archive.getnames()


def test_wheels(release: Path, stock: list[str], run: Run, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    refused = run("make", tmp_path / "b.tar", "--release", release, *stock, "--wheels", wheels)
    assert "has no wheels" in refused.output
    (wheels / "a-1-py3-none-any.whl").write_bytes(b"PK")
    done = run("make", tmp_path / "b.tar", "--release", release, *stock, "--wheels", wheels)
    assert done.exit_code == 0
    assert "wheels/a-1-py3-none-any.whl" in run("verify", tmp_path / "b.tar").output


def test_a_release_that_is_none(release: Path, run: Run, tmp_path: Path) -> None:
    """No folder, a changed file, a missing one, a name that leads elsewhere."""
    out = tmp_path / "b.tar"
    assert "make release ARGS=--images" in run("make", out, "--release", tmp_path / "none").output
    file = release / "worker-0.1.0.tar"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + b"\1")
    assert "worker-0.1.0.tar isn't what SHA256SUMS says" in run("make", out, "--release", release).output
    file.unlink()
    assert "worker-0.1.0.tar isn't what SHA256SUMS says" in run("make", out, "--release", release).output
    (release / SUMS).write_text(f"{hashlib.sha256(before).hexdigest()}  ../x\n")
    (tmp_path / "x").write_bytes(before)
    assert "isn't what SHA256SUMS says" in run("make", out, "--release", release).output
    assert not out.exists()


def test_an_image_that_the_chart_asks_for(release: Path, run: Run, tmp_path: Path) -> None:
    """It is named with the command that gets it; --partial leaves it out."""
    refused = run("make", tmp_path / "b.tar", "--release", release)
    assert refused.exit_code == 1
    assert "coreos/etcd:v3.6.16, nats:2.12.1-alpine" in refused.output
    assert "docker pull quay.io/coreos/etcd:v3.6.16 && docker save" in refused.output
    assert run("make", tmp_path / "b.tar", "--release", release, "--partial").exit_code == 0
    sums = (release / SUMS).read_text().splitlines(keepends=True)
    (release / SUMS).write_text("".join(line for line in sums if not line.endswith(".tar\n")))
    assert "make release ARGS=--images" in run("make", tmp_path / "b.tar", "--release", release).output


def test_archives_of_images_that_are_none(release: Path, run: Run, tmp_path: Path) -> None:
    """Each refused by what it lacks."""
    good = save(tmp_path / "good.tar", {"a:1": [layer(b"1")]})
    (tmp_path / "small.tar.gz").write_bytes(gzip.compress(good.read_bytes()))
    (tmp_path / "text.tar").write_text("no archive")
    unnamed = save(tmp_path / "unnamed.tar", {None: [layer(b"1")]})
    capital = save(tmp_path / "capital.tar", {"UPPER:1": [layer(b"1")]})
    two = save(tmp_path / "two.tar", {"a:1": [layer(b"1")], "b:1": [layer(b"2")]})
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    with tarfile.open(tmp_path / "half.tar", "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        content = b'[{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["gone"]}]'
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    for given, said in {
        tmp_path / "small.tar.gz": "uncompressed",
        tmp_path / "text.tar": "can't be read as an archive",
        tmp_path / "none.tar": "No such file",
        unnamed: "has no name: give it as NAME:TAG=",
        capital: "no name of an image",
        f"x:1={two}": "holds 2 images",
        tmp_path / "empty.tar": "no file manifest.json",
        tmp_path / "half.tar": "no file gone",
    }.items():
        done = run("make", tmp_path / "b.tar", "--release", release, "--partial", "--image", given)
        assert (done.exit_code, said in done.output) == (1, True), done.output
    for given in (good, f"other:2={unnamed}", two):
        done = run("make", tmp_path / "b.tar", "--release", release, "--partial", "--image", given)
        assert done.exit_code == 0, done.output
    twice = ["--image", good, "--image", good]
    assert "two images a:1" in run("make", tmp_path / "b.tar", "--release", release, "--partial", *twice).output


def test_models_that_are_none(release: Path, run: Run, tmp_path: Path) -> None:
    out, empty, model = tmp_path / "b.tar", tmp_path / "empty", tmp_path / "m.gguf"
    empty.mkdir()
    model.touch()
    common = ["make", out, "--release", release, "--partial"]
    assert "is no model: 0 files" in run(*common, "--model", empty).output
    assert "is no model: 0 files" in run(*common, "--model", tmp_path / "none").output
    absent = run(*common, "--model", model, "--model-image", "registry.example.com/vllm:1")
    assert "--model-image vllm:1 isn't in the bundle" in absent.output
    named = tmp_path / "gemma (q4).gguf"
    named.touch()
    assert "give another one, as NAME=PATH" in run(*common, "--model", named).output
    assert run(*common, "--model", f"gemma.gguf={named}").exit_code == 0
    assert "model /models/gemma.gguf is in" in run("verify", out).output


def test_what_signs_must_be_there(
    made: Path, release: Path, stock: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without cosign, or without a signature: said, and nothing is called checked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    key = tmp_path / "key"
    key.touch()
    signed = run("make", tmp_path / "c.tar", "--release", release, *stock, "--key", key)
    assert "cosign isn't on PATH" in signed.output
    assert not (tmp_path / "c.tar").exists()
    assert "has no signature" in run("verify", made, "--key", key).output


@pytest.mark.parametrize(
    ("name", "part"),
    [("Gemma-3 270M.gguf", "gemma-3-270m"), ("Qwen3_0.6B", "qwen3-0-6b"), ("a..b", "a-b"), ("x" * 99, "x" * 64)],
)
def test_a_models_name_in_an_images(name: str, part: str, tmp_path: Path) -> None:
    (tmp_path / "m").touch()
    assert ModelLayer(tmp_path / "m", name).slug == part


def test_a_model_without_letters(tmp_path: Path) -> None:
    (tmp_path / "_.gguf").touch()
    assert ModelLayer(tmp_path / "_.gguf").slug.isalnum()


def test_a_full_disk_is_not_the_sources_fault(release: Path, stock: list[str], run: Run, tmp_path: Path) -> None:
    """Nor is a source that can't be read the bundle's."""
    done = run("make", "/dev/full/b.tar", "--release", release, *stock)
    assert "/dev/full/b.tar can't be written" in done.output
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "gone.whl").symlink_to("nowhere")
    done = run("make", tmp_path / "b.tar", "--release", release, *stock, "--wheels", wheels)
    assert f"{wheels}/gone.whl can't be read: No such file" in done.output
    limited = f"ulimit -f 100; exec {sys.executable} -m dynamo.cli bundle make {tmp_path}/c.tar --release {release}"
    words = ["bash", "-c", f"trap '' XFSZ; {limited} {' '.join(stock)}"]
    cut = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert cut.returncode == 1
    assert f"{tmp_path}/c.tar can't be written: File too large" in cut.stderr


def test_what_others_write_prints_no_escapes(release: Path, run: Run, tmp_path: Path) -> None:
    """Names and answers stand in messages, and terminals obey escapes."""
    evil = tmp_path / "evil.tar"
    content = b'[{"Config": "c", "RepoTags": ["a:1"], "Layers": ["\\u001b]0;x"]}]'
    with tarfile.open(evil, "w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    done = run("make", tmp_path / "b.tar", "--release", release, "--partial", "--image", evil)
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "\\x1b" in done.output


def test_a_sparse_layer(release: Path, run: Run, tmp_path: Path) -> None:
    """Three kilobytes that say they are a gigabyte: refused."""
    (tmp_path / "0").mkdir()
    for name, text in {"manifest.json": '[{"Config": "c", "RepoTags": ["a:1"], "Layers": ["l"]}]', "c": "{}"}.items():
        (tmp_path / "0" / name).write_text(text)
    with (tmp_path / "0" / "l").open("wb") as file:
        file.truncate(1 << 30)
    words = ["tar", "--sparse", "-cf", str(tmp_path / "s.tar"), "-C", str(tmp_path / "0"), "manifest.json", "c", "l"]
    subprocess.run(words, check=True, timeout=60)
    done = run("make", tmp_path / "b.tar", "--release", release, "--partial", "--image", tmp_path / "s.tar")
    assert "no file l without holes" in done.output


def _chart(**files: bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"dynamo-platform/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def test_a_chart_that_is_none(release: Path, tmp_path: Path) -> None:
    """A real one is unpacked; bombs, links, ways out and halves aren't."""
    whole = (release / "dynamo-platform-0.1.0.tgz").read_bytes()
    assert (platform_chart.unpack(whole, tmp_path / "good") / "Chart.yaml").is_file()
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w:gz") as archive:
        member = tarfile.TarInfo("dynamo-platform/values.yaml")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    bomb = _chart(bomb=bytes(17 << 20))
    heads = io.BytesIO()
    with tarfile.open(fileobj=heads, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("dynamo-platform/a")
        member.pax_headers = {"comment": "x" * (20 << 20)}
        archive.addfile(member)
    many = _chart(**{f"f{number}": b"" for number in range(1001)})
    out = _chart(**{"../../x": b"1"})
    for content in (bomb, heads.getvalue(), many, link.getvalue(), out, whole[:1000], b"", b"no archive"):
        with pytest.raises(BundleError, match="dynamo-platform in the bundle"):
            platform_chart.unpack(content, tmp_path / "bad")
    assert not (tmp_path / "x").exists()


def test_what_the_chart_asks_for(release: Path) -> None:
    wanted = platform_chart.wanted_by(release / "dynamo-platform-0.1.0.tgz")
    assert wanted["coreos/etcd:v3.6.16"] == "quay.io/coreos/etcd:v3.6.16"
    assert {f"dynamo-pipelines/{name}:0.1.0" for name in OURS} < {*wanted}
