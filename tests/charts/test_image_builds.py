"""How images are made without a registry: names, what makes one again, the index's settings, what an image may hold."""

from __future__ import annotations

import json
import os
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from e2e.images.audit import problems
from e2e.images.context import allowed, digest_of, snapshot
from e2e.images.earlier import retagged
from e2e.images.make import KEPT, outdated
from e2e.images.pip_settings import as_file, hosts
from e2e.images.recipes import default_base, digest, read, reference
from e2e.kind.archive import Image, layer_of, write
from tests.charts.documents import PLATFORM, ROOT, values

CATALOGUE = read(ROOT)
URL = "-".join(["index", "url"])  # in one word, it would look like an index that somebody left here
LABELS = {f"org.opencontainers.image.{name}": "x" for name in ("title", "description", "licenses", "version")}


def test_the_images_are_those_that_the_chart_asks_for() -> None:
    """With the names that the chart's pods have, as a container runtime completes them."""
    made = {recipe.reference for recipe in CATALOGUE.recipes} | {program.reference for program in CATALOGUE.programs}
    etcd = values(PLATFORM)["etcd"]["image"]
    assert f"{etcd['registry']}/{etcd['repository']}:{etcd['tag']}" in made
    version = read_version()
    asked = {values(PLATFORM)["operator"]["image"]["repository"], values(PLATFORM)["pipelines"]["images"]["frontend"]}
    asked |= set(values(PLATFORM)["pipelines"]["images"]["workers"].values())
    assert {f"docker.io/{name}:{version}" for name in asked} <= made
    assert CATALOGUE.ours == ["operator", "frontend", "worker", "worker-llamacpp", "worker-openai"]


def read_version() -> str:
    """The chart's appVersion."""
    lines = (PLATFORM / "Chart.yaml").read_text().splitlines()
    return next(line for line in lines if line.startswith("appVersion:")).split('"')[1]


def test_images_that_only_long_scenarios_need_are_left_out_of_the_others() -> None:
    """An engine's own image, and the worker built beside it, which holds our source and so changes with it."""
    assert set(CATALOGUE.names) - set(CATALOGUE.usual) == {"llama-server", "worker-beside", "otelcol"}
    assert set(CATALOGUE.usual) - set(CATALOGUE.loaded) == {"worker-llamacpp", "worker-openai"}
    beside = next(recipe for recipe in CATALOGUE.recipes if recipe.name == "worker-beside")
    assert (beside.target, beside.parent, beside.holds_source) == ("beside", "llama-server", True)
    assert f"AS {beside.target}\n" in (ROOT / beside.file).read_text()


def test_every_recipe_has_its_files() -> None:
    """And the parent of each is made before it."""
    names = [recipe.name for recipe in CATALOGUE.recipes]
    sources = [source for recipe in CATALOGUE.recipes for source in recipe.sources]
    assert [source for source in sources if not (ROOT / source).is_file()] == []
    assert all(names.index(recipe.parent) < names.index(recipe.name) for recipe in CATALOGUE.recipes if recipe.parent)
    assert default_base(ROOT).startswith("python:")


@pytest.mark.parametrize(
    ("parts", "full"),
    [
        (("", "nats", "2"), "docker.io/library/nats:2"),
        (("docker.io", "nats", "2"), "docker.io/library/nats:2"),
        (("", "dynamo-pipelines/worker", "1"), "docker.io/dynamo-pipelines/worker:1"),
        (("quay.io", "etcd", "3"), "quay.io/etcd:3"),
        (("localhost:5000", "a/b", "3"), "localhost:5000/a/b:3"),
    ],
)
def test_a_reference_is_complete(parts: tuple[str, str, str], full: str) -> None:
    """containerd knows an image by its full name only."""
    assert reference(*parts) == full


def test_builds_see_all_that_a_wheel_is_made_of() -> None:
    """Each of our images makes a wheel: what pyproject.toml puts into it is in the context, and copied."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = [*wheel["force-include"], *(package.partition("/")[0] for package in wheel["packages"])]
    seen = {".dockerignore": set(allowed(ROOT))}
    for file in {recipe.file for recipe in CATALOGUE.recipes if recipe.name in CATALOGUE.ours}:
        copies = [line.split()[1:-1] for line in (ROOT / file).read_text().splitlines() if line.startswith("COPY ")]
        seen[file] = {path for paths in copies for path in paths}
    for file, paths in seen.items():
        assert [s for s in sources if not paths & {s, *map(str, Path(s).parents)}] == [], file


def test_equal_inputs_have_equal_names() -> None:
    """Whatever order they come in; one that differs gives another name."""
    assert digest(a=1, b={"x": 1, "y": 2}) == digest(b={"y": 2, "x": 1}, a=1)
    assert digest(a=1) != digest(a=2)


def test_the_context_is_the_source_alone(tmp_path: Path) -> None:
    """Not the tests, not what Python leaves beside the files; the same files have the same digest at any time."""
    root, first, second = tmp_path / "root", tmp_path / "first", tmp_path / "second"
    given = {".dockerignore": "*\n!sdk\n!LICENSE\n", "sdk/a/b.py": "1", "LICENSE": "free", "tests/c.py": "2"}
    for name, text in {**given, "sdk/a/__pycache__/b.cpython-311.pyc": "3"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    snapshot(root, first)
    assert {str(path.relative_to(first)) for path in first.rglob("*") if path.is_file()} == {"sdk/a/b.py", "LICENSE"}
    os.utime(root / "LICENSE", (1, 1))
    (root / "tests/c.py").write_text("another")
    snapshot(root, second)
    assert digest_of(first) == digest_of(second)
    (second / "LICENSE").write_text("not free")
    assert digest_of(first) != digest_of(second)


def test_the_newest_archives_are_kept(tmp_path: Path) -> None:
    """By when they were asked for last."""
    archives = [tmp_path / f"worker-{number}.tar" for number in range(KEPT + 2)]
    for age, archive in enumerate(archives):
        archive.touch()
        os.utime(archive, (1000 - age, 1000 - age))
    assert outdated(archives) == archives[KEPT:]


def test_settings_of_the_index_come_from_files_and_variables() -> None:
    """Variables win over files; what names a folder of this machine stays here."""
    listed = f"""
global.{URL}='https://index.example/root'
global.timeout='10'
install.timeout='20'
:env:.timeout='30'
:env:.find-links='/some/folder'
global.cert='/etc/ssl/certs/ca-certificates.crt'
global.extra-{URL}='\\nhttps://user:word@one.example/a\\nhttps://two.example:8443/b'
"""
    written = as_file(listed)
    assert written.splitlines()[0] == "[global]"
    assert "timeout = 30" in written
    assert "cert = /etc/ssl/certs/ca-certificates.crt" in written
    assert "/some/folder" not in written
    assert hosts(written) == {"index.example", "one.example", "two.example"}
    assert "cert" not in as_file("global.cert='/some/ca.pem'")
    assert hosts(f"[global]\n{URL} = https://pypi.org/x\n") == set()


def archive(tmp_path: Path, *layers: dict[str, str], **config: object) -> Path:
    """A docker-archive whose layers hold these files."""
    tars = []
    for number, files in enumerate(layers):
        folder = tmp_path / f"layer-{number}"
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        tars.append(layer_of(folder, tmp_path / f"{number}.tar"))
    return write(Image(["x/y:1"], tars, {"User": "1000:1000", "Labels": LABELS, **config}), tmp_path / "image.tar")


def test_an_image_that_keeps_its_promises(tmp_path: Path) -> None:
    """Nothing is said of it, though its base had pip before a layer removed it."""
    removed = {"usr/lib/python3/site-packages/.wh.pip": "", "usr/local/bin/.wh.pip3": ""}
    base = {"usr/lib/python3/site-packages/pip/__init__.py": "", "usr/local/bin/pip3": "", "usr/bin/python3": ""}
    assert problems(archive(tmp_path, base, removed), ["index.example"]) == []


def test_an_opaque_folder_hides_what_lay_below(tmp_path: Path) -> None:
    """As overlay file systems write the replacement of a whole folder."""
    base = {"usr/lib/site-packages/pip/__init__.py": ""}
    assert problems(archive(tmp_path, base, {"usr/lib/site-packages/.wh..wh..opq": ""})) == []


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("usr/lib/python3/site-packages/pip/__init__.py", "an installer"),
        ("usr/bin/x86_64-linux-gnu-gcc-12", "a compiler"),
        ("root/.cache/pip/wheel", "a cache"),
        ("src/sdk/dynamo/x.py", "a source tree"),
        ("etc/pip.conf", "settings of an index"),
    ],
)
def test_what_is_left_inside_is_named(tmp_path: Path, file: str, what: str) -> None:
    """With the file that shows it."""
    assert problems(archive(tmp_path, {file: ""})) == [f"{what} is left inside: {file}"]


def test_root_missing_labels_and_hosts_are_named(tmp_path: Path) -> None:
    """The host may stand in a layer or in the configuration."""
    image = archive(tmp_path, {"etc/x": "see https://index.example/"}, User="", Labels={}, Env=["A=two.example"])
    sentences = problems(image, ["index.example", "two.example", "three.example"])
    assert sentences[0] == "it runs as root, not as 1000:1000"
    assert sentences[1].startswith("labels are missing: org.opencontainers.image.description")
    assert sentences[2:] == ["index.example is named in the image", "two.example is named in the image"]


def test_an_archive_is_one_that_tools_read(tmp_path: Path) -> None:
    """`manifest.json` names a configuration and the layers, which lie beside it."""
    with tarfile.open(archive(tmp_path, {"a": "1"}, {"b": "2"})) as opened:
        content = opened.extractfile("manifest.json")
        assert content is not None
        manifest = json.load(content)[0]
        assert {manifest["Config"], *manifest["Layers"]} <= set(opened.getnames())


def test_another_release_has_a_tag_of_its_own(tmp_path: Path) -> None:
    """The same image under another tag, so that a node can hold it beside this one's."""
    made = archive(tmp_path, {"a": "1"})
    also = ("repositories", "oci-layout", "index.json")  # of a newer Docker: containerd would take the names from there
    with tarfile.open(made, "a") as opened:
        for name in also:
            opened.addfile(tarfile.TarInfo(name))
    named = retagged(made, "earlier", tmp_path / "other.tar")
    manifests = {}
    for file in (made, named):
        with tarfile.open(file) as opened:
            content = opened.extractfile("manifest.json")
            assert content is not None
            manifests[file] = json.load(content)[0]
            assert {manifests[file]["Config"], *manifests[file]["Layers"]} <= set(opened.getnames())
            assert set(also).issubset(opened.getnames()) == (file == made)
    names = [f"{name.rpartition(':')[0]}:earlier" for name in manifests[made].pop("RepoTags")]
    assert names == manifests[named].pop("RepoTags") != []
    assert manifests[made] == manifests[named]
