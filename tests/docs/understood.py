"""Whether a command line that can't be run here would be understood: asked of the parsers of our programs.

Nothing is started. Words of other programs are looked at as far as they name things of ours.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from docs.generate import commands_page

from dynamo.cli.run import main as run
from dynamo.operator.api.load import load_pipelines
from dynamo.operator.api.v1alpha1 import KIND

ROOT: Final = Path(__file__).parents[2]
ENDS: Final = ("|", "||", "&&", ";", "&", "(", ")")
REDIRECTS: Final = (">", ">>", "<", ">&")
ELSEWHERE: Final = (
    "echo", "printf", "eval", "export", "jq", "python3", ".", "source", "git", "cd", "openssl", "kind",
    "etcd", "nvidia-smi", "flux", "ollama", "sed", "done", "cosign", "tar", "mkdir", "cut", "sha256sum",
)  # fmt: skip
"""Programs with nothing of ours in their words."""
INNER: Final = re.compile(r"\$\(([^()]*)\)")
FILES: Final = re.compile(r"[\w./-]+\.(?:yaml|jsonl|json|gguf|crt|key)")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each command of a shell's lines."""
    inner = INNER.findall(text)
    if inner:
        yield from commands("\n".join(inner))
    for line in INNER.sub("X", text).replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        rest = iter([*lexer, ";"])
        for word in rest:
            if word in REDIRECTS:
                next(rest)
            elif word not in ENDS:
                words.append(word)
            elif words:
                yield words
                words = []


class Reader:
    """Asks the real parsers, in a folder where the files are that lines name."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        for name in ("examples", "charts", "crds", "Makefile", "pyproject.toml", "constraints.txt", "locks"):
            (folder / name).symlink_to(ROOT / name)
        patch.chdir(folder)
        patch.setattr(run, "_start", lambda _: 0)
        self._programs = commands_page.programs()

    def read(self, text: str) -> int:
        """How many commands there are; fails with the first that nobody understands."""
        typed = list(commands(text))
        for words in typed:
            while words and (words[0] == "do" or re.fullmatch(r"[A-Za-z_]+=.*", words[0])):
                words = words[1:]
            if words[:1] == ["for"]:
                continue
            self._make_files(words)
            if words:
                self._one(words)
        return len(typed)

    def write(self, name: str, text: str) -> None:
        """Make a file that the page makes; a pipeline is checked, and values by the platform chart's schema."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        if name.endswith("values.yaml"):
            schema = json.loads((ROOT / "charts/dynamo-platform/values.schema.json").read_text())
            jsonschema.validate(yaml.safe_load(text), schema)
        elif file.suffix == ".yaml":
            _objects(text, name)

    def _make_files(self, words: Sequence[str]) -> None:
        for word in words:
            if FILES.fullmatch(word) and not (self.folder / word).exists() and not word.startswith(("/", "examples/")):
                (self.folder / word).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / word).touch()

    def _one(self, words: list[str]) -> None:
        program, *rest = words
        if program == "python" and rest[:1] == ["-m"]:
            program, rest = f"python -m {rest[1]}", rest[2:]
        program = {"python -m dynamo.frontend": "dynamo-frontend"}.get(program, program)
        if program == "dynamo-run" or words[:2] == ["dynamo", "run"]:
            assert run.run(rest if program == "dynamo-run" else rest[1:]) == 0, words
        elif program in self._programs:
            self._parse(program, rest)
        elif program not in ELSEWHERE and not program.startswith("./"):
            self._other(program)(rest)

    def _parse(self, program: str, rest: list[str]) -> None:
        command: Any = self._programs[program]
        if program == "dynamo":
            name, command, rest = command.resolve_command(click.Context(command), rest)
            assert command is not None, name
        with contextlib.suppress(click.exceptions.Exit):  # --help and the like
            command.make_context(program, rest)

    def _other(self, program: str) -> Callable[[list[str]], None]:
        known = {"make": make, "pip": pip, "curl": curl, "helm": helm, "kubectl": kubectl, "docker": docker}
        assert program in known, f"nobody knows {program}: run it, or mark the fence 'shown, since …'"
        return known[program]


def _objects(text: str, title: str) -> None:
    """Check each object of a file; ours by their own rules."""
    kinds = [document["kind"] for document in yaml.safe_load_all(text) if document["apiVersion"]]
    if KIND in kinds:
        load_pipelines(text, title)


def make(words: list[str]) -> None:
    """Its targets are there."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words if "=" not in word} <= targets


def pip(words: list[str]) -> None:
    """The extras of ours are there, and so are the files."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        if match := re.fullmatch(r"(?:\.|dynamo-pipelines)\[([\w,-]+)\]", word):
            assert set(match[1].split(",")) <= set(extras)
        elif word.endswith(".txt"):
            assert (ROOT / word).exists()


def curl(words: list[str]) -> None:
    """What is sent is JSON."""
    if "-d" in words:
        json.loads(words[words.index("-d") + 1])


def helm(words: list[str]) -> None:
    """The charts are there, and so are the values that are set. `e2e/charts` asks helm itself."""
    for word in words:
        assert not word.startswith("charts/") or (ROOT / word / "Chart.yaml").is_file(), word


def docker(words: list[str]) -> None:
    """The file that is built is there, and so is the target in it."""
    if words[0] == "build" and "-f" in words:
        file = (ROOT / words[words.index("-f") + 1]).read_text()
        targets = {words[place + 1] for place, word in enumerate(words) if word == "--target"}
        assert targets <= set(re.findall(r"^FROM .* AS ([\w-]+)$", file, re.MULTILINE | re.IGNORECASE)), words


def kubectl(words: list[str]) -> None:
    """Files are pipelines, or kinds of others; `dp` is the CRD's short name."""
    for word in words:
        if word.endswith(".yaml") and Path(word).stat().st_size:
            _objects(Path(word).read_text(), word)
    crd = next((ROOT / "crds").glob("*.yaml")).read_text()
    assert "- dp\n" in crd
