"""Many command lines for the price of one start: a process that has imported dynamo-run forks one for each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_PROGRAM = """
import json, os, signal, sys, tempfile
import dynamo.cli.run.session
from dynamo.cli.run.main import main
answers = []
for words, typed in json.load(sys.stdin):
    said = [tempfile.TemporaryFile() for _ in range(3)]
    said[0].write(typed.encode())
    said[0].seek(0)
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        for number, file in enumerate(said):
            os.dup2(file.fileno(), number)
        main(words)
    _, status = os.waitpid(pid, 0)
    texts = []
    for file in said[1:]:
        file.seek(0)
        texts.append(file.read().decode())
    answers.append([os.waitstatus_to_exitcode(status), *texts])
json.dump(answers, sys.stdout)
"""


class Done(NamedTuple):
    """How a line ended."""

    code: int
    """Negative: by that signal, SIGALRM after a minute."""
    out: str
    err: str


def run_all(lines: Sequence[tuple[Sequence[str], str]], env: Mapping[str, str]) -> list[Done]:
    """Run each line (the words after `dynamo-run`, and what is typed), one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], input=json.dumps(lines), env=env, capture_output=True, text=True, timeout=110,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [Done(*answer) for answer in json.loads(done.stdout)]
