"""Turns of a conversation, as other APIs have them, put together to a chat's messages. Pure.

What an assistant thought, said and called in a row is one message: templates expect their own turn whole. What the
system says before anybody else has spoken is one message, too, since many templates take only one, at the beginning.
"""

from __future__ import annotations

from typing import Any, Final

SYSTEM: Final = "system"
ASSISTANT: Final = "assistant"
Message = dict[str, Any]


class ChatBuilder:
    """Collects `messages`."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: set[str] = set()

    def system(self, text: str) -> None:
        """Add what the system says."""
        if self.messages and all(message["role"] == SYSTEM for message in self.messages):
            self.messages[-1]["content"] += f"\n\n{text}"
        else:
            self.messages.append({"role": SYSTEM, "content": text})

    def user(self, text: str) -> None:
        """Add what the user says."""
        self.messages.append({"role": "user", "content": text})

    def said(self, text: str) -> None:
        """Add what the assistant said."""
        turn = self._turn()
        turn["content"] = (turn["content"] or "") + text

    def thought(self, text: str) -> None:
        """Add what the assistant thought; templates that know of thoughts show those that matter."""
        turn = self._turn()
        turn["reasoning_content"] = turn.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool that the assistant called."""
        self._calls.add(call_id)
        function = {"name": name, "arguments": arguments}
        self._turn().setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def was_called(self, call_id: str) -> bool:
        """Tell whether a call with this id stands before."""
        return call_id in self._calls

    def result(self, call_id: str, text: str) -> None:
        """Add what a tool answered."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _turn(self) -> Message:
        """Return the assistant's message that is being put together."""
        if not self.messages or self.messages[-1]["role"] != ASSISTANT:
            self.messages.append({"role": ASSISTANT, "content": None})
        return self.messages[-1]
