"""Versions, the changelog, and what is read of images: the parts of a release that are text."""

from __future__ import annotations

import datetime
import io
import json
import shutil
import tarfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
from release import installed
from release.changelog import cut, notes_of
from release.sbom import Package
from release.versions import set_version, spelled, version_of

ROOT = Path(__file__).parents[2]
LOG = "# Changelog\n\nText.\n\n## [Unreleased]\n\n### Added\n\n- new\n\n## [0.1.0] - 2026-01-01\n\n- old\n"
DAY = datetime.date(2026, 12, 1)


def test_the_changelog_is_cut() -> None:
    """What was unreleased gets the version's heading; the next changes have an empty one."""
    text = cut(LOG, "0.2.0", DAY)
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- new\n" in text
    assert notes_of(text, "0.2.0") == "### Added\n\n- new\n"
    assert notes_of(text, "0.1.0") == "- old\n"
    assert notes_of(text, "0.3.0") == "\n"
    with pytest.raises(ValueError, match="nothing under"):
        cut(text, "0.3.0", DAY)


def test_the_version_is_the_same_everywhere(tmp_path: Path) -> None:
    """Here it is, and in a copy the next one is after one command; other numbers stay."""
    assert {said for _, said in spelled(ROOT)} == {version_of(ROOT)}
    for name in {name for name, _ in spelled(ROOT)}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    set_version(tmp_path, "7.8.9rc1")
    assert version_of(tmp_path) == "7.8.9rc1"
    assert {said for _, said in spelled(tmp_path)} == {"7.8.9rc1"}
    for name in {name for name, _ in spelled(ROOT)}:
        assert (tmp_path / name).read_text().replace("7.8.9rc1", version_of(ROOT)) == (ROOT / name).read_text()
    with pytest.raises(ValueError, match="write it as"):
        set_version(tmp_path, "v1")


def layer(**files: str) -> bytes:
    """A tar archive."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return raw.getvalue()


def test_an_image_says_what_is_in_it(tmp_path: Path) -> None:
    """Python's packages of all layers, and Debian's as the last layer lists them; what was removed is not installed."""
    status = "Package: {}\nStatus: {}\nVersion: 1:2.3-4\n\n"
    removed = "usr/lib/python3/site-packages/pip-1.0.dist-info"
    base = layer(**{
        "./var/lib/dpkg/status": status.format("old", "install ok installed"),
        f"{removed}/METADATA": "Metadata-Version: 2.4\nName: pip\nVersion: 1.0\n\n",
    })  # fmt: skip
    top = layer(**{
        "var/lib/dpkg/status": status.format("libc6", "install ok installed")
        + status.format("gone", "deinstall ok config-files"),
        "opt/dynamo/lib/python3.11/site-packages/Foo_Bar-1.0.dist-info/METADATA":
            "Metadata-Version: 2.4\nName: Foo_Bar\nVersion: 1.0\nLicense-Expression: MIT\n\nText\n",
        "opt/dynamo/lib/python3.11/site-packages/foo/METADATA": "Name: no\nVersion: 2\n",
        "usr/lib/python3/site-packages/.wh.pip-1.0.dist-info": "",
    })  # fmt: skip
    archive = tmp_path / "image.tar"
    with tarfile.open(archive, "w") as opened:
        manifest = json.dumps([{"Layers": ["a.tar", "b.tar"]}]).encode()
        for name, content in (("manifest.json", manifest), ("a.tar", base), ("b.tar", top)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    assert sorted(installed.of_image(archive)) == [
        Package("deb", "libc6", "1:2.3-4"), Package("pypi", "foo-bar", "1.0", "MIT"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: x", "MIT OR Apache-2.0"),
        ("License: BSD-3-Clause", "BSD-3-Clause"),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
        (f"License: {'long ' * 20}\nClassifier: License :: OSI Approved :: MIT License", "MIT License"),
        ("Classifier: Programming Language :: Python", ""),
    ],
)
def test_licences_are_read_as_authors_write_them(fields: str, licence: str) -> None:
    """The expression, else a short name, else what the index's list calls it; never a whole text."""
    assert installed.licence_of(HeaderParser().parsestr(fields + "\n\n")) == licence
