"""Messages and tools of a chat, as OpenAI checks them: who may speak, what each has to say, which calls are answered.

Pure. The types of fields are checked before (`openai/requests.py`), and the parts of a content. Other APIs than chat's
build conversations of their own, and check them there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.openai.chat_builder import first_ids
from dynamo.frontend.openai.constraints import NAME, NAME_FORM
from dynamo.frontend.openai.custom_tools import CUSTOM
from dynamo.frontend.openai.request_structs import ChatRequest, Message
from dynamo.llm.processing.image_prompts import KINDS as IMAGE_KINDS

_TOOL: Final = "tool"
_ASSISTANT: Final = "assistant"
_TEXT_ONLY: Final = ("system", "developer")
_MISSING: Final = "missing_required_parameter"
_INSTEAD: Final = ("reasoning_content", "reasoning", "refusal", "audio", "function_call", "prefix")
"""What an assistant may have said without a content."""


def check_conversation(body: Mapping[str, Any], request: ChatRequest) -> None:
    """Raise the 400 of a message that says nothing, of an answer to no call, or of a tool that can't be called."""
    for index, message in enumerate(request.messages):
        if message.tool_calls or message.role == _TOOL or not isinstance(message.content, str):
            _check_messages(body["messages"], request.messages, index, continued=bool(request.continue_final_message))
            break
    if request.tools:
        for index, tool in enumerate(request.tools):
            _check_tool(tool, f"tools[{index}]")


def _check_messages(
    raw: Sequence[Mapping[str, Any]], messages: Sequence[Message], begin: int, *, continued: bool
) -> None:
    """Look closely at the messages from the first one that isn't plain text."""
    called: set[str] = set()
    waiting: dict[str, int] = {}
    for index in range(begin, len(messages)):
        message, where = messages[index], f"messages[{index}]"
        if message.role == _TOOL:
            _check_answer(message, where, called)
            waiting.pop(message.tool_call_id or "", None)
        elif waiting:
            break
        for number, call in enumerate(message.tool_calls or ()):
            called.add(call_id := _check_call(call, f"{where}.tool_calls[{number}]"))
            waiting[call_id] = index
        if message.role in _TEXT_ONLY and not isinstance(message.content, str):
            _check_text(message.content or (), message.role, f"{where}.content")
        if not message.content and not isinstance(message.content, str):
            _check_silence(raw[index], message, f"{where}.content")
    if waiting and not (continued and set(waiting.values()) == {len(messages) - 1}):
        raise _unanswered(waiting)


def _unanswered(waiting: Mapping[str, int]) -> ApiError:
    """Return the 400 of calls that another message follows, or none, before their results."""
    where = f"messages[{next(iter(waiting.values()))}]"
    text = f"{where}: each of its tool calls needs a message of role tool next; none answers {first_ids(waiting)}."
    return bad_request(text, where)


def _check_text(parts: Sequence[Mapping[str, Any]], role: str, where: str) -> None:
    for index, part in enumerate(parts):
        if part.get("type") in IMAGE_KINDS:
            text = f"{where}[{index}]: a {role} message may not have images; send them in one of role user."
            raise bad_request(text, f"{where}[{index}]")


def _check_silence(raw: Mapping[str, Any], message: Message, where: str) -> None:
    if message.role == _ASSISTANT and (message.tool_calls or any(raw.get(name) is not None for name in _INSTEAD)):
        return
    if message.role == "function" and "content" in raw:  # OpenAI's older form: null is a result, too
        return
    if "content" not in raw:
        raise _required(where)
    given = "null" if message.content is None else "an empty list"
    raise bad_request(f"{where}: expected a string or a list of parts, got {given}.", where, "invalid_type")


def _check_answer(message: Message, where: str, called: set[str]) -> None:
    if not message.tool_call_id:
        raise _required(f"{where}.tool_call_id")
    if message.tool_call_id not in called:
        text = f"{where}: no assistant message before it has a tool call with the id {shown(message.tool_call_id)}."
        raise bad_request(text, f"{where}.tool_call_id")


def _check_call(call: Mapping[str, Any], where: str) -> str:
    """Raise where it is none; return its id."""
    kind, given = call.get("type"), call.get("id")
    if not isinstance(given, str) or not given:
        raise _required(f"{where}.id")
    if kind == CUSTOM:
        return given
    if kind not in ("function", None):
        text = f"{where}.type: expected function or custom, got {shown(kind)}."
        raise bad_request(text, f"{where}.type", "unsupported_value")
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _required(f"{where}.function")
    if not isinstance(name := function.get("name"), str) or not name:
        raise _required(f"{where}.function.name")
    return given


def _check_tool(tool: Mapping[str, Any], where: str) -> None:
    kind = tool.get("type")
    if kind is None:
        raise _required(f"{where}.type")
    if kind != "function":  # said by name where tools are chosen
        return
    function = tool.get("function")
    if function is None:
        raise _required(f"{where}.function")
    if not isinstance(function, Mapping):
        text = f"{where}.function: expected an object, got {shown(function)}."
        raise bad_request(text, f"{where}.function", "invalid_type")
    if (name := function.get("name")) is None:
        raise _required(f"{where}.function.name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        text = f"{where}.function.name: expected {NAME_FORM}, got {shown(name)}."
        raise bad_request(text, f"{where}.function.name")
    if not isinstance(strict := function.get("strict"), bool | None):
        raise bad_request(f"{where}.function.strict: expected bool, got {shown(strict)}.", f"{where}.function.strict",
                          "invalid_type")  # fmt: skip
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        text = f"{where}.function.parameters: expected a JSON schema, an object, got {shown(parameters)}."
        raise bad_request(text, f"{where}.function.parameters", "invalid_type")


def _required(param: str) -> ApiError:
    return bad_request(f"{param}: this field is required.", param, _MISSING)
