"""Turns of a conversation, as other APIs have them, put together to a chat's messages. Pure.

What an assistant thought, said and called in a row is one message: templates expect their own turn whole. What the
system says before anybody else has spoken is one message, too, since many templates take only one, at the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from dynamo.frontend.errors import UNKNOWN_PARAMETER, ApiError, bad_request, shown
from dynamo.frontend.openai.request_structs import MAX_TOOLS

SYSTEM: Final = "system"
ASSISTANT: Final = "assistant"
Message = dict[str, Any]
Piece = str | Message
"""Text, or the content part of an image."""
_IMAGE_SIZE: Final = 2048
"""Characters that an image counts as: about as many tokens as most become."""


class ChatBuilder:
    """Builder that collects turns; texts are joined once, since ten thousand may belong to one turn."""

    def __init__(self) -> None:
        self._turns: list[Message] = []
        self._calls: set[str] = set()
        self._waiting: dict[str, int] = {}
        """Calls that have no result yet, in their order; of an id that was used again before its result, how many."""
        self._cut: set[str] = set()
        """Calls that ended within their arguments, and have no result."""
        self.problem: ApiError | None = None
        """The first thing that no schema can say: it is raised once the model is known."""

    def messages(self, place: str) -> list[Message]:
        """Return the chat's `messages`; note calls without a result as a problem of the field `place`."""
        if self._waiting:
            text = f"{place}: each tool call needs its result before the model can go on; these have none: "
            self.refuse(bad_request(f"{text}{first_ids(self._waiting)}.", place))
        return [_joined(turn) for turn in self._turns if not self._cut or self._without_cut(turn)]

    def system(self, text: str) -> None:
        """Add what the system says."""
        if len(self._turns) == 1 and self._turns[0]["role"] == SYSTEM:
            self._turns[0]["content"] += ["\n\n", text]
        else:
            self._turns.append({"role": SYSTEM, "content": [text]})

    def user(self, *content: Piece) -> None:
        """Add what the user says, and shows."""
        self._turns.append({"role": "user", "content": [*content]})

    def said(self, text: str) -> None:
        """Add what the assistant said."""
        self._turn()["content"].append(text)

    def thought(self, text: str) -> None:
        """Add what the assistant thought; templates that know of thoughts show those that matter."""
        self._turn().setdefault("reasoning_content", []).append(text)

    def call(self, call_id: str, name: str, arguments: str, *, cut: bool = False) -> None:
        """Add a tool that the assistant called; one that was `cut` within its arguments needs no result.

        Without a result it is left out: nobody could run it, and its arguments aren't JSON.
        """
        self._calls.add(call_id)
        if cut:
            self._cut.add(call_id)
        else:
            self._waiting[call_id] = self._waiting.get(call_id, 0) + 1
        function = {"name": name, "arguments": arguments}
        calls = self._turn().setdefault("tool_calls", [])
        if len(calls) < MAX_TOOLS:
            calls.append({"id": call_id, "type": "function", "function": function})
        else:
            text = f"messages: at most {MAX_TOOLS} tools may be called in a row."
            self.refuse(bad_request(text, "messages"))

    def refuse(self, error: ApiError) -> None:
        """Note what is wrong with the conversation as a whole."""
        self.problem = self.problem or error

    def result(self, call_id: str, content: Sequence[Piece], place: str) -> None:
        """Add what a tool answered; `place` names the field of its call's id."""
        if call_id not in self._calls:
            text = f"{place}: no call with the id {shown(call_id)} stands before this result."
            self.refuse(bad_request(text, place))
        if (calls := self._waiting.pop(call_id, 0)) > 1:
            self._waiting[call_id] = calls - 1
        self._cut.discard(call_id)
        self._turns.append({"role": "tool", "tool_call_id": call_id, "content": [*content]})

    def _without_cut(self, turn: Message) -> bool:
        """Leave cut calls out of a turn; tell whether anything is left of it."""
        if "tool_calls" not in turn:
            return True
        turn["tool_calls"] = [call for call in turn["tool_calls"] if call["id"] not in self._cut]
        if not turn["tool_calls"]:
            del turn["tool_calls"]
        return bool(turn["content"] or len(turn) > 2)

    def _turn(self) -> Message:
        """Return the assistant's message that is being put together."""
        if not self._turns or self._turns[-1]["role"] != ASSISTANT:
            self._turns.append({"role": ASSISTANT, "content": []})
        return self._turns[-1]


def first_ids(ids: Iterable[str]) -> str:
    """Return the first three ids, as an error shows them."""
    named = list(islice(ids, 4))
    return ", ".join(shown(name) for name in named[:3]) + (" and others" if len(named) > 3 else "")


def _joined(turn: Message) -> Message:
    message = {**turn, "content": _content(turn["content"])}
    if "reasoning_content" in turn:
        message["reasoning_content"] = "".join(turn["reasoning_content"])
    if turn["role"] == ASSISTANT and not message["content"]:
        message["content"] = None if "tool_calls" in turn else ""
    return message


def _content(pieces: Sequence[Piece]) -> str | list[Message]:
    """Return one text, or parts where an image is among the pieces."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)  # type: ignore[arg-type] # all of them are texts
    return [{"type": "text", "text": piece} if isinstance(piece, str) else piece for piece in pieces if piece]


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error about a chat's field as one about another API's, by its `names` of the chat's fields."""
    old = "" if error.code == UNKNOWN_PARAMETER else error.param or ""  # an unknown field is the client's own word
    end = next((at for at, sign in enumerate(old) if sign in ".["), len(old))
    if old[:end] in names:
        error.param = names[old[:end]]
        if error.message.startswith(f"{old}: "):
            error.message = f"{error.param}: {error.message.removeprefix(f'{old}: ')}"
    return error


def shortened(messages: list[Message], share: float) -> list[Message] | None:
    """Return the messages without the oldest, about this share of their text left; None where none can go.

    The system's first words stay, and so does the last message; a tool's answer goes with the call that asked for it.
    """
    first = 1 if messages and messages[0]["role"] == SYSTEM else 0
    sizes = [_size(message) for message in messages]
    left, at = sum(sizes), first
    most = left * share
    while at < len(messages) - 1 and (at == first or left > most or messages[at]["role"] == "tool"):
        left -= sizes[at]
        at += 1
    return None if at == first or messages[at]["role"] == "tool" else [*messages[:first], *messages[at:]]


def _size(message: Message) -> int:
    arguments = sum(len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))
    return _content_size(message["content"]) + arguments + 16


def _content_size(content: str | list[Message] | None) -> int:
    if isinstance(content, list):
        return sum(len(part["text"]) if "text" in part else _IMAGE_SIZE for part in content)
    return len(content or "")
