"""A release in other hands: installed where no clone is, signed and checked by cosign; its workflow, by actionlint."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from e2e.cluster.cluster import program
from release.build import SUMS, build
from tests.pages.printed import serving
from tests.release.test_build import clone as clone
from tests.release.test_build import release as release

ROOT = Path(__file__).parents[2]
PASSWORD = {"COSIGN_PASSWORD": "of a test"}
RUN_SECONDS = 120


@pytest.fixture
def installed(release: Path, tmp_path: Path) -> Path:
    """The programs of the wheel, in an environment of its own that sees what it needs and nothing of the clone."""
    (wheel,) = release.glob("*.whl")
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True, timeout=RUN_SECONDS)
    python = environment / "bin/python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=RUN_SECONDS)
    (packages,) = (environment / "lib").glob("python3*/site-packages")
    (packages / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def run(*words: str | Path, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without what this process knows of the clone."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*words], cwd=folder, env={**kept, "HOME": str(folder), **environment}, capture_output=True, text=True,
        timeout=RUN_SECONDS, check=False,
    )  # fmt: skip


@pytest.mark.full
def test_a_wheel_serves_where_no_clone_is(installed: Path, tmp_path: Path) -> None:
    """Its own package is what is imported; it has the examples and the chart, and a model is served."""
    here = tmp_path / "here"
    here.mkdir()
    code = "import dynamo.runtime, dynamo.cli; print(dynamo.runtime.__file__, dynamo.cli.__file__)"
    where = run(installed / "python", "-c", code, folder=here).stdout.split()
    assert all(path.startswith(str(installed.parent)) for path in where), where
    for name in ("dynamo", "dynamo-run", "dynamo-frontend", "dynamo-worker", "dynamo-operator"):
        assert run(installed / name, "--version", folder=here).returncode == 0, name
    for line in run(installed / "dynamo", "example", folder=here).stdout.splitlines():
        name = line.split()[0]
        text = run(installed / "dynamo", "example", name, folder=here).stdout
        file = here / (name.replace("/", "-") + ("" if name.endswith(".py") else ".yaml"))
        file.write_text(text)
        assert text, name
    checked = run(installed / "dynamo", "validate", "echo.yaml", "mocker.yaml", "disagg.yaml", folder=here)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert (Path(where[1]).parent / "cluster/charts/dynamo-platform/Chart.yaml").exists()
    environment = {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "HOME": str(here)}
    command = [str(installed / "dynamo-run"), "in=http", "out=echo_full", "--model-name", "m"]
    with serving(command, here / "log", environment) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "from a wheel"}])
    assert "from a wheel" in (answer.choices[0].message.content or "")


@pytest.mark.full
def test_cosign_takes_what_was_signed_and_no_flipped_byte(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key and no network: the checksums are whose key it is, and each file is as it was."""
    cosign = program("cosign")
    monkeypatch.setenv("PATH", f"{Path(cosign).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(*next(iter(PASSWORD.items())))
    for name in ("ours", "theirs"):
        made = run(cosign, "generate-key-pair", "--output-key-prefix", name, folder=tmp_path, **PASSWORD)
        assert made.returncode == 0, made.stderr
    out = tmp_path / "out"
    build(clone, out, key=tmp_path / "ours.key")
    verify = [
        cosign, "verify-blob", "--bundle", f"{SUMS}.sigstore.json", "--insecure-ignore-tlog", "--key",
    ]  # fmt: skip
    good = run(*verify, tmp_path / "ours.pub", SUMS, folder=out)
    assert good.returncode == 0, good.stderr
    assert run(*verify, tmp_path / "theirs.pub", SUMS, folder=out).returncode != 0
    sums = out / SUMS
    sums.write_text(sums.read_text().replace("a", "b", 1))
    assert run(*verify, tmp_path / "ours.pub", SUMS, folder=out).returncode != 0


@pytest.mark.full
def test_the_workflow_is_one(tmp_path: Path) -> None:
    """actionlint has nothing to say, and every action is named by its commit."""
    folder = tmp_path / ".github"
    shutil.copytree(ROOT / ".github", folder)
    files = sorted((folder / "workflows").glob("*.yml"))
    done = run(program("actionlint"), *files, folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    for file in files:
        used = [line.split("uses: ")[1] for line in file.read_text().splitlines() if "uses: " in line]
        assert used
        assert [name for name in used if len(name.split("@")[1].split()[0]) != 40] == []
