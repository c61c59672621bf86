"""A Docker daemon, and how commands reach it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from e2e.kind.steps import succeeds

PULL_SECONDS = 600


@dataclass(frozen=True)
class Docker:
    """A daemon: the environment and the words before a command that make it answer."""

    env: Mapping[str, str]
    enter: tuple[str, ...]
    private: bool

    @property
    def command(self) -> list[str]:
        """The command line's client."""
        return [*self.enter, "docker"]

    def answers(self) -> bool:
        """Whether the daemon is there and lets us in."""
        return succeeds([*self.command, "info"], seconds=20, env=self.env)

    def has(self, image: str) -> bool:
        """Whether an image is there, without asking a registry."""
        return succeeds([*self.command, "image", "inspect", image], seconds=20, env=self.env)

    def obtains(self, image: str) -> bool:
        """Whether an image is there or could be pulled."""
        pull = [*self.command, "pull", "--quiet", image]
        return self.has(image) or succeeds(pull, seconds=PULL_SECONDS, env=self.env)
