"""A deployment and programs of all ages on it, each a process of its own; a model's folder that they all can read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from tests.llm.conftest import byte_level_file, checkout
from tests.processes import Process
from tests.system.conftest import Stack, eventually

__all__ = ["byte_level_file", "checkout"]
PROGRAMS = Path(__file__).parent / "programs"


class Deployment:
    """etcd, NATS, one frontend, and what a test starts beside them."""

    def __init__(self, folder: Path) -> None:
        self.stack = Stack(folder)
        self.frontend = self.stack.frontend()
        self.api = openai.OpenAI(base_url=f"{self.frontend.url}/v1", api_key="any", max_retries=0, timeout=120)

    def program(self, name: str, *arguments: str) -> Process:
        """Start one of `programs/`."""
        return self.run(PROGRAMS / f"{name}.py", *arguments)

    def run(self, file: Path, *arguments: str, name: str = "") -> Process:
        name = name or f"{file.stem}-{len(self.stack.processes)}"
        return self.stack.start(name, [sys.executable, str(file), *arguments], self.stack.env)

    def serves(self, model: str, *by: Process) -> None:
        """Return once the frontend has the model; fails at once where one of the processes has ended."""

        def there() -> bool:
            for process in by:
                assert process.popen.poll() is None, f"{process.name} ended: {process.text()[-3000:]}"
            return model in self.frontend.models()

        eventually(f"{model} is served", there, 180)

    def say(self, model: str, text: str, **more: object) -> str:
        """The answer of a chat."""
        done = self.api.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], **more  # type: ignore[call-overload]
        )  # fmt: skip
        return str(done.choices[0].message.content)

    def close(self) -> None:
        self.api.close()
        self.stack.close()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    opened = Deployment(tmp_path)
    try:
        yield opened
    finally:
        opened.close()
