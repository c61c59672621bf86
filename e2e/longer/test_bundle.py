"""A bundle with a real registry, real cosign and real buildah: made, checked, pushed with a sign-in, pulled again."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.cli.shell import Terminal
from e2e.cluster.cluster import program
from e2e.cluster.registry import registry
from tests.release.test_build import clone as clone
from tests.release.test_build import release as release

PASSWORD = {"COSIGN_PASSWORD": "of a test"}
HASH = "$2b$04$abcdefghijklmnopqrstuudMegMbPN37MbpdEfAtP66w1z0RBCtLG"
"""Of the password p, by bcrypt."""
SECONDS = 120
NAME = "a/static:1"
WITH_MODEL = "a/static-tiny:1"


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """A user without a cluster."""
    return Terminal(config=tmp_path / "none", home=tmp_path)


def buildah(folder: Path, *words: str) -> str:
    """Run buildah in a store of its own."""
    store = ["--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    done = subprocess.run(["buildah", *store, *words], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Path]:
    """An image of one file, as buildah saves it."""
    folder, file = tmp_path / "making", tmp_path / "image.tar"
    folder.mkdir()
    (folder / "hello").write_text("hello\n")
    container = buildah(folder, "from", "scratch")
    buildah(folder, "copy", container, str(folder / "hello"), "/hello")
    buildah(folder, "commit", container, f"docker-archive:{file}:docker.io/{NAME}")
    yield file
    buildah(folder, "rm", "--all")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Two pairs of keys: ours and theirs."""
    for name in ("ours", "theirs"):
        subprocess.run(
            [program("cosign"), "generate-key-pair", "--output-key-prefix", name], cwd=tmp_path, check=True,
            env={**os.environ, **PASSWORD}, capture_output=True, timeout=SECONDS,
        )  # fmt: skip
    return tmp_path


@pytest.mark.full
@pytest.mark.timeout(600)
def test_from_a_release_to_a_registry(
    release: Path, archive: Path, keys: Path, terminal: Terminal, tmp_path: Path
) -> None:
    """Signed, refused with a flipped byte or another's key, pushed, and what buildah pulls has the files."""
    model = tmp_path / "tiny.gguf"
    model.write_bytes(b"GGUF" * 1000)
    words = ["--release", str(release), "--image", str(archive), "--model", str(model), "--model-image", NAME]
    made = terminal.run("bundle", "make", "b.tar", "--partial", *words, "--key", "ours.key", environment=PASSWORD)
    assert made.returncode == 0, made.stderr
    assert f"/models/tiny.gguf is in image {WITH_MODEL}" in made.stdout
    _judges(terminal, tmp_path / "b.tar")
    with registry(tmp_path / "registry", settings=_users(tmp_path)) as host:
        push = ["bundle", "push", "b.tar", f"{host}/team", "--plain-http", "--key", "ours.pub"]
        refused = terminal.run(*push)
        assert (refused.returncode, f"docker login {host}" in refused.stderr) == (1, True), refused.stderr
        _sign_in(tmp_path, host)
        pushed = terminal.run(*push)
        assert pushed.returncode == 0, pushed.stderr
        assert "sent 0 B" in terminal.run(*push).stdout
        _pulls(tmp_path, host, model)


def _judges(terminal: Terminal, bundle: Path) -> None:
    verify = ("bundle", "verify", bundle.name, "--key")
    good = terminal.run(*verify, "ours.pub")
    assert (good.returncode, "signed by the owner" in good.stderr) == (0, True), good.stderr
    other = terminal.run(*verify, "theirs.pub")
    assert (other.returncode, "cosign verify-blob refuses" in other.stderr) == (1, True), other.stderr
    whole = bundle.read_bytes()
    for place in (600, len(whole) // 2, len(whole) - 5000, len(whole) - 1):
        bundle.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert terminal.run(*verify, "ours.pub").returncode == 1, place
    bundle.write_bytes(whole)


def _users(folder: Path) -> dict[str, str]:
    """One user, u, whose password is p."""
    file = folder / "htpasswd"
    file.write_text(f"u:{HASH}\n")
    return {"REGISTRY_AUTH_HTPASSWD_REALM": "test", "REGISTRY_AUTH_HTPASSWD_PATH": str(file)}


def _sign_in(home: Path, host: str) -> None:
    """Leave what `docker login` leaves."""
    folder = home / ".docker"
    folder.mkdir()
    login = base64.b64encode(b"u:p").decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": login}}}))


def _pulls(folder: Path, host: str, model: Path) -> None:
    """Another program reads what was pushed: the file that was there, and the model."""
    store = folder / "pulled"
    store.mkdir()
    reference = f"{host}/team/{WITH_MODEL}"
    buildah(store, "pull", "--tls-verify=false", "--creds", "u:p", f"docker://{reference}")
    container = buildah(store, "from", "--pull-never", reference)
    root = Path(buildah(store, "mount", container))
    try:
        assert (root / "hello").read_text() == "hello\n"
        assert (root / "models/tiny.gguf").read_bytes() == model.read_bytes()
    finally:
        buildah(store, "umount", container)
        buildah(store, "rm", container)
