"""Put our packages beside an engine that an image has: `beside.py install NEEDS CONSTRAINTS FOLDER`.

FOLDER becomes an environment of its own that also sees the engine's packages. pip adds only what the engine lacks, at
the versions of CONSTRAINTS; whatever the engine has stays as it is. Then it is checked, or the build fails: the engine
sees every package of its own at the same version, and each of NEEDS has what it requires, at any depth.

`beside.py list` prints what a Python sees, one `name==version` a line: the two lists of a check can be made by hand.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Packages = dict[str, str]


def plain(name: str) -> str:
    """Return a distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parsed(text: str) -> Packages:
    """Return the packages of lines `name==version`; other lines of a constraints file say nothing of versions."""
    lines = (line.partition(";")[0].strip() for line in text.splitlines())
    pairs = (line.partition("==") for line in lines if "==" in line and not line.startswith(("#", "-")))
    return {plain(name.partition("[")[0].strip()): version.strip() for name, _, version in pairs}


def merged(engine: Mapping[str, str], ours: str) -> str:
    """Return constraints: the engine's versions first, and of ours those that the engine doesn't have."""
    added = {name: version for name, version in parsed(ours).items() if name not in engine}
    return "".join(f"{name}=={version}\n" for name, version in sorted({**engine, **added}.items()))


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return what became of the engine's packages; additions are fine."""
    return [
        f"{name} {version} is {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def unmet(needs: Iterable[str], lines: Mapping[str, list[str]], packages: Mapping[str, str], pip: Any) -> list[str]:
    """Return requirements of `needs`, at any depth, that the packages don't meet; `lines` has what each requires.

    What the engine's own packages lack of each other was so before us: where a need is met by one of them, its
    requirements are its own affair.
    """
    waiting, seen, problems = [(line, "the worker") for line in needs], set[str](), list[str]()
    while waiting:
        line, wanted_by = waiting.pop()
        requirement = pip(line)
        name = plain(requirement.name)
        version = packages.get(name)
        if version is None:
            problems.append(f"{wanted_by} needs {line}, which is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{wanted_by} needs {line}, and {version} is there")
        if line not in seen:
            seen.add(line)
            extras = {"", *requirement.extras}
            below = ((text, pip(text).marker) for text in lines.get(name, ()))
            waiting += [
                (text, name)
                for text, marker in below
                if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
            ]
    return sorted(problems)


def listed() -> Packages:
    """Return what this Python sees; the first on its path counts, as for an import."""
    packages: Packages = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name and distribution.version:
            packages.setdefault(plain(name), distribution.version)
    return packages


def _list_of(python: str) -> Packages:
    done = subprocess.run([python, __file__, "list"], check=True, capture_output=True, text=True)
    return parsed(done.stdout)


def _requirements(python: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Return what each of the distributions requires, as that Python finds them."""
    code = (
        "import importlib.metadata as m, json, sys; print(json.dumps({n: m.requires(n) or [] for n in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *names], check=True, capture_output=True, text=True)
    answer: dict[str, list[str]] = json.loads(done.stdout)
    return answer


def sees(folder: Path) -> None:
    """Let the environment see the engine's packages, behind its own; those that an engine links are seen, too."""
    (inside,) = (folder / "lib").glob("python3*/site-packages")
    engine = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    known = dict.fromkeys([*engine, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    calls = "; ".join(f"site.addsitedir({path!r})" for path in known)
    (inside / "zz_engine.pth").write_text(f"import site; {calls}\n", encoding="utf-8")


def install(needs: Path, constraints: Path, folder: Path) -> list[str]:
    """Install what is missing, and return what is wrong then."""
    from pip._vendor.packaging.requirements import Requirement  # the image's pip has it, the image need not

    before = listed()
    sees(folder)
    python = str(folder / "bin/python")
    bounds = folder / "constraints.txt"
    bounds.write_text(merged(before, constraints.read_text("utf-8")), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-compile"]
    done = subprocess.run([*pip, "-c", str(bounds), "-r", str(needs)], check=False)
    bounds.unlink()
    if done.returncode:
        return ["pip can't add what is missing without changing a package of the engine: it says which above"]
    after = _list_of(python)
    lines = [line for line in needs.read_text("utf-8").splitlines() if line]
    ours = _requirements(python, sorted(set(after) - set(before)))
    return [*changed(before, after), *unmet(lines, ours, after, Requirement)]


def main(words: list[str]) -> int:
    """Do what is asked; problems go to the build's log."""
    if words == ["list"]:
        sys.stdout.write("".join(f"{name}=={version}\n" for name, version in sorted(listed().items())))
        return 0
    _, *paths = words
    problems = install(*map(Path, paths))
    sys.stderr.write("".join(f"beside.py: {problem}\n" for problem in problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
