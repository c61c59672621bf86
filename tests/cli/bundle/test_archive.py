"""Bundles as files: what is written is read, and every other byte is refused."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamo.cli.bundle.archive import SUMS, Bundle, BundleWriter, writing
from dynamo.cli.bundle.errors import BundleError
from dynamo.cli.bundle.tar_format import BLOCK, header

LONG = "wheels/" + "a" * 120 + ".whl"


def write(path: Path, files: dict[str, bytes]) -> Path:
    with writing(path) as into:
        for name, content in files.items():
            into.add(name, content)
        into.end(None)
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write(tmp_path / "small.tar", {"charts/a.tgz": b"one", LONG: b"two" * 300, "index.json": b""})


def read(path: Path) -> int:
    with Bundle(path) as bundle:
        return bundle.verify()


def test_what_is_written_is_read(small: Path) -> None:
    with Bundle(small) as bundle:
        assert bundle.names == ["charts/a.tgz", LONG, "index.json", SUMS]
        assert bundle.read(LONG) == b"two" * 300
        assert bundle.verify() == 903


def test_tar_and_sha256sum_read_it(small: Path, tmp_path: Path) -> None:
    """By the lines of docs/get-started/air-gap.md, which leave out what nobody summed."""
    page = (Path(__file__).parents[3] / "docs/get-started/air-gap.md").read_text()
    lines = [line for line in page.splitlines() if line.startswith(("cut -c", "sha256sum"))]
    assert len(lines) == 2
    with tarfile.open(small, "a", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("wheels/evil-99-py3-none-any.whl"))
    small.rename(tmp_path / "dynamo.tar")
    inside = tmp_path / "inside"
    inside.mkdir()
    script = "\n".join(["set -e", "tar -xf ../dynamo.tar SHA256SUMS", *lines])
    subprocess.run(["sh", "-c", script], cwd=inside, check=True, timeout=30)
    assert (inside / LONG).read_bytes() == b"two" * 300
    assert not (inside / "wheels/evil-99-py3-none-any.whl").exists()


@pytest.mark.parametrize("bit", [0, 5, 7])
def test_flipped_bytes_are_refused(small: Path, bit: int) -> None:
    """In files, headers, checksums, and the zeros between; every eleventh byte, from another one for each bit."""
    whole = small.read_bytes()
    for place in range(bit, len(whole), 11):
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        small.write_bytes(changed)
        with pytest.raises(BundleError):
            read(small)


def test_a_flipped_byte_is_named(made: Path) -> None:
    with Bundle(made) as bundle:
        names = bundle.names
    whole = made.read_bytes()
    with tarfile.open(made) as archive:
        places = {member.name: member.offset_data for member in archive}
    for name in names[:-1]:
        changed = bytearray(whole)
        changed[places[name]] ^= 1
        made.write_bytes(changed)
        with pytest.raises(BundleError, match=name):
            read(made)


def test_every_cut_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    for length in range(0, len(whole), BLOCK // 4):
        small.write_bytes(whole[:length])
        with pytest.raises(BundleError):
            read(small)
    small.write_bytes(whole + bytes(BLOCK))
    with pytest.raises(BundleError):
        read(small)


@pytest.mark.parametrize("name", ["../a", "/a", "a/../b", "a//b", ".a", "a b", "a\n", "a" * 256, "é"])
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    """Neither written nor read."""
    with pytest.raises(BundleError, match="can't be the name"):
        write(tmp_path / "a.tar", {name: b""})
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(BundleError):
        read(tmp_path / "b.tar")


def test_what_is_no_file(tmp_path: Path) -> None:
    """Links and devices of an archive that somebody else made."""
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
        member = tarfile.TarInfo("a")
        member.type, member.linkname = kind, "/etc/passwd"
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
            archive.addfile(member)
        with pytest.raises(BundleError, match="damaged at byte 0"):
            read(tmp_path / "a.tar")


def test_what_nobody_summed(tmp_path: Path, small: Path) -> None:
    """A file beyond the checksums, one that isn't there, and one that is there twice."""
    with writing(tmp_path / "more.tar") as into:
        into.add("a", b"1")
        sums = into.sums()
        into.add("b", b"2")
        into.add(SUMS, sums)
        into._file.write(bytes(2 * BLOCK))
    with pytest.raises(BundleError, match=r"b in .* is not in SHA256SUMS"):
        read(tmp_path / "more.tar")
    with writing(tmp_path / "less.tar") as into:
        into.add(SUMS, f"{hashlib.sha256().hexdigest()}  a\n".encode())
        into._file.write(bytes(2 * BLOCK))
    with pytest.raises(BundleError, match="lacks a, which"):
        read(tmp_path / "less.tar")
    with writing(tmp_path / "twice.tar") as into:
        into.add("a", b"1")
        with pytest.raises(BundleError, match="already"):
            into.add("a", b"1")


def test_a_change_after_the_check(made: Path) -> None:
    """What is used is what was checked: each file is compared again when it is read."""
    with Bundle(made) as bundle:
        bundle.verify()
        name = next(name for name in bundle.names if name.startswith("charts/"))
        with tarfile.open(made) as archive:
            place = archive.getmember(name).offset_data
        with made.open("r+b") as file:
            file.seek(place)
            file.write(b"evil")
        with pytest.raises(BundleError, match=rf"{name} .* isn't what SHA256SUMS says"):
            bundle.read(name)


def test_a_blob_under_anothers_name(tmp_path: Path) -> None:
    """Its checksum is right, and its name isn't."""
    write(tmp_path / "a.tar", {f"blobs/sha256/{'ab' * 32}": b"1"})
    with pytest.raises(BundleError, match="isn't what its name says"):
        read(tmp_path / "a.tar")


def test_a_size_below_zero(tmp_path: Path) -> None:
    """GNU's form of numbers has a sign, by which files could overlap."""
    (tmp_path / "a.tar").write_bytes(header("SHA256SUMS", -1) + bytes(2 * BLOCK))
    with pytest.raises(BundleError, match="damaged at byte 0"):
        read(tmp_path / "a.tar")


def test_two_at_once_and_what_lies_beside(tmp_path: Path) -> None:
    """Each writes its own; the last one stays, and no other file is touched."""
    path, beside = tmp_path / "a.tar", tmp_path / "a.tar.part"
    beside.write_text("a user's")
    with writing(path) as one, writing(path) as two:
        one.add("a", b"1")
        two.add("a", b"2")
        one.end(None)
        two.end(None)
    with Bundle(path) as bundle:
        assert bundle.read("a") == b"1"
    assert beside.read_text() == "a user's"
    assert {file.name for file in tmp_path.iterdir()} == {"a.tar", "a.tar.part"}


def test_one_blob_once(tmp_path: Path) -> None:
    with writing(tmp_path / "a.tar") as into:
        blobs = [into.blob(3, [content], "t") for content in (b"one", b"two", b"one")]
        into.end(None)
    assert blobs[0] == blobs[2]
    with Bundle(tmp_path / "a.tar") as bundle:
        assert bundle.names == [blobs[0].file, blobs[1].file, SUMS]
        bundle.verify()


@pytest.mark.parametrize("content", [b"ab", b"abcd"])
def test_a_file_that_changes_meanwhile(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(BundleError, match="changed while it was read"), writing(tmp_path / "a.tar") as into:
        into.stream("a", 3, [content])
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match="can't be written"), writing(tmp_path / "file" / "a.tar"):
        raise AssertionError

    def to_a_full_disk() -> None:
        with Path("/dev/full").open("wb", buffering=0) as full, writing(tmp_path / "a.tar") as into:
            into._file = full
            into.add("a", b"x")

    with pytest.raises(BundleError, match="No space left"):
        to_a_full_disk()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupted_one_leaves_the_earlier(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", {"a": b"1"})
    before = path.read_bytes()

    def interrupted(into: BundleWriter) -> None:
        into.add("b", b"2")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), writing(path) as into:
        interrupted(into)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_parts_make_the_same_bytes(
    made: Path, release: Path, stock: list[str], run: Callable[..., object], tmp_path: Path
) -> None:
    run("make", tmp_path / "again.tar", "--release", release, *stock)
    assert (tmp_path / "again.tar").read_bytes() == made.read_bytes()
