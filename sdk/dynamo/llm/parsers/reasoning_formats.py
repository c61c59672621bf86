"""How the families of models mark their thoughts, and whether a prompt has opened one already. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ThoughtFormat:
    """Format of thoughts: where one begins and ends."""

    opens: tuple[str, ...] = ("<think>",)
    closes: tuple[str, ...] = ("</think>",)
    open_at_start: bool = False
    """An answer begins inside a thought, unless its prompt shows otherwise."""
    ends_too: tuple[str, ...] = ()
    """Where a thought ends as well, and what stands there is read on: models that forget to close it."""
    gap: str = "\r\n"
    """What separates a thought from the answer, and is part of neither."""

    def open_after(self, tail: str) -> bool:
        """Tell whether an answer begins inside a thought, from the end of its prompt ("" where that isn't known)."""
        tail = tail.rstrip()
        if tail.endswith(self.opens):
            return True
        return self.open_at_start and not tail.endswith(self.closes)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Return markers that are special tokens in some vocabularies, where text would not show them."""
        return self.opens + self.closes + self.ends_too


_THINK: Final = ThoughtFormat()
_OPEN: Final = ThoughtFormat(open_at_start=True)
_KIMI_TOOLS: Final = ("<|tool_calls_section_begin|>",)

THOUGHTS: Final[dict[str, ThoughtFormat]] = {
    "basic": _THINK,
    "deepseek_r1": _OPEN,
    "deepseek_v3": _THINK,
    "deepseek_v3_1": _THINK,
    "deepseek_v3_2": _THINK,
    "glm45": _THINK,
    "glm47": _THINK,
    "granite": ThoughtFormat(
        ("Here's my thought process:", "Here is my thought process:"),
        ("Here's my response:", "Here is my response:"),
        gap=" \r\n",
    ),
    "kimi": ThoughtFormat(("◁think▷",), ("◁/think▷",)),
    "kimi_k2": ThoughtFormat(ends_too=_KIMI_TOOLS),
    "kimi_k25": ThoughtFormat(open_at_start=True, ends_too=_KIMI_TOOLS),
    "minimax_m2": _OPEN,
    "mistral": ThoughtFormat(("[THINK]",), ("[/THINK]",)),
    "nemotron_deci": _THINK,
    "nemotron_nano": _OPEN,
    "qwen3": _THINK,
    "seed_oss": ThoughtFormat(("<seed:think>",), ("</seed:think>",)),
    "step3": _OPEN,
}
"""`gpt_oss` is not here: its thoughts are messages (`harmony.py`)."""
