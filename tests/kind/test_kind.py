"""What `make e2e` decides before it runs anything: names, places, versions, archives, sentences."""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from e2e.kind import archive, node_image
from e2e.kind.archive import Image
from e2e.kind.binaries import GO, version_of
from e2e.kind.places import Places
from e2e.kind.steps import StepError, run

SOCKET_PATH_LIMIT = 107


def test_two_caches_are_two_clusters(tmp_path: Path) -> None:
    """Another cache has another cluster, namespace and run folder, so that both can be up."""
    usual = Places.of({"HOME": str(tmp_path)})
    assert usual.name == "dynamo-e2e"
    assert usual.bin == tmp_path / ".cache/dynamo-pipelines/bin"
    others = [Places.of({"HOME": str(tmp_path), "DYNAMO_E2E_CACHE": str(tmp_path / name)}) for name in "ab"]
    assert len({place.name for place in (usual, *others)}) == 3
    assert len({place.run for place in (usual, *others)}) == 3


def test_a_long_cache_path_makes_no_long_socket_path(tmp_path: Path) -> None:
    """The kernel takes at most 107 characters, wherever the cache lies."""
    places = Places.of({"HOME": str(tmp_path), "DYNAMO_E2E_CACHE": "/" + "deep/" * 60})
    assert len(str(places.run / "exec/containerd/containerd.sock")) < SOCKET_PATH_LIMIT


def test_versions_come_from_the_module_files() -> None:
    """What go.mod requires, of our own module as of the indirect ones; another module is a clear error."""
    assert f"k8s.io/kubernetes {version_of('k8s.io/kubernetes')}\n" in (GO / "node/go.mod").read_text()
    assert version_of("github.com/coredns/coredns", "coredns").startswith("v1.")
    with pytest.raises(StepError, match=r"go\.mod does not require example\.org/none"):
        version_of("example.org/none")


def test_kubernetes_and_its_staging_modules_agree() -> None:
    """Every module that kubernetes keeps in its own repository is replaced by the release that belongs to it."""
    release = version_of("k8s.io/kubernetes").replace("v1.", "v0.", 1)
    text = (GO / "node/go.mod").read_text()
    replaced = [line.split("=>") for line in text.splitlines() if "=>" in line]
    assert len(replaced) > 20
    assert {new.split()[1] for _, new in replaced} == {release}


def test_an_archive_is_what_docker_load_expects(tmp_path: Path) -> None:
    """The manifest names a configuration by its digest, and layers whose digests the configuration lists in order."""
    for name in ("low", "high"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    layers = [archive.layer_of(tmp_path / name, tmp_path / f"{name}.tar") for name in ("low", "high")]
    config = {"Env": ["A=b"], "Entrypoint": ["/file"]}
    made = archive.write(Image(["local/one:1", "local/two:2"], layers, config), tmp_path / "image.tar")
    with tarfile.open(made) as tar:
        content = {name: _read(tar, name) for name in tar.getnames()}
    (manifest,) = json.loads(content["manifest.json"])
    assert manifest["RepoTags"] == ["local/one:1", "local/two:2"]
    assert manifest["Config"] == hashlib.sha256(content[manifest["Config"]]).hexdigest() + ".json"
    written = json.loads(content[manifest["Config"]])
    digests = [f"sha256:{hashlib.sha256(content[layer]).hexdigest()}" for layer in manifest["Layers"]]
    assert written["rootfs"]["diff_ids"] == digests
    assert written["config"]["Env"][-1] == "A=b"
    assert written["config"]["Entrypoint"] == ["/file"]


def _read(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.extractfile(name)
    assert member is not None
    return member.read()


def test_the_storage_manifest_is_taken_out_of_go_source() -> None:
    """Constants are filled in where the source joins them; without the manifest it is an error that says where."""
    source = 'const image = "example/one:1"\nconst defaultStorageManifest = `\nimage: ` + image + `\n---\n`\n'
    assert node_image.storage_manifest(source) == "\nimage: example/one:1\n---\n"
    with pytest.raises(StepError, match=r"node_image\.py"):
        node_image.storage_manifest("package nodeimage")


def test_a_failed_command_says_what_it_said() -> None:
    """The error names the command and its status and holds the end of its output; a missing program is named."""
    with pytest.raises(StepError, match=r"(?s)ended with 3:.*the cause"):
        run([sys.executable, "-c", "import sys; print('the cause'); sys.exit(3)"], seconds=30)
    with pytest.raises(StepError, match="no-such-program is not installed"):
        run(["no-such-program"], seconds=5)
    with pytest.raises(StepError, match=r"had not ended after 0 s"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.2)
