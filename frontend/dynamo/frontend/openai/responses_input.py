"""Items of the Responses API, as clients send them and as they are stored, to the messages of a chat. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.images.parts import image_part
from dynamo.frontend.openai.chat_builder import ChatBuilder, Piece
from dynamo.frontend.openai.responses_tools import CALLS, CUSTOM, Member

Item = dict[str, Any]
_SEALED: Final = "dynamo1."
"""How our `encrypted_content` begins. It hides nothing: the client may read what its own model thought."""
_TEXTS: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_IMAGE: Final = "input_image"
_KEPT: Final = ("type", "text", "refusal", "image_url", "detail")
"""Fields of a part."""
_SYSTEM: Final = ("system", "developer")
_WORDS: Final = (
    "type", "id", "role", "status", "phase", "call_id", "name", "arguments", "encrypted_content", "input",
    "namespace",
)  # fmt: skip
_OBJECTS: Final = ("action", "operation")
"""Of calls that are no functions': small, and read as they are."""
_PARTS: Final = ("content", "output", "summary")
MOST_ID: Final = 512
"""Characters of a call's id or a tool's name."""
_ROLES: Final = ("user", "assistant", *_SYSTEM)


def items_of(given: str | Sequence[Item]) -> list[Item]:
    """Return a request's `input` as items."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    return [{"type": "message", **item} if "type" not in item else dict(item) for item in given]


def add_items(chat: ChatBuilder, items: Sequence[Item], where: str = "input") -> None:
    """Add items to a chat; a 400 names the one that can't be."""
    for index, item in enumerate(items):
        kind, content = item.get("type"), item.get("content")
        if kind == "message" and item.get("role") == "user" and isinstance(content, str):
            chat.user(content)  # the shortest way, since there may be thousands
            continue
        path = f"{where}[{index}]"
        add = _ADDERS.get(kind) if isinstance(kind, str) else None
        if add is None:
            known = ", ".join(_ADDERS)
            text = f"{path}: items of type {shown(kind)} are not supported; send {known}."
            raise bad_request(text, path, "unsupported_value")
        add(chat, item, path)


def trimmed(item: Item) -> Item:
    """Return what is read of an item that `add_items` has taken: what else stands in it would cost whoever goes on."""
    kept: Item = {name: value for name in _WORDS if isinstance(value := item.get(name), str)}
    kept |= {name: value for name in _OBJECTS if isinstance(value := item.get(name), Mapping)}
    for name in _PARTS:
        value = item.get(name)
        if isinstance(value, str):
            kept[name] = value
        elif isinstance(value, list):
            trim = dict if item.get("type") == "shell_call_output" else _trimmed_part
            kept[name] = [trim(part) for part in value if isinstance(part, Mapping)]
    return kept


def kept(item: Item) -> Item:
    """Return an item as conversations keep it."""
    return in_parts(trimmed(item))


def in_parts(item: Item) -> Item:
    """Make an item what clients read: a message's content is parts, and it is over."""
    if item.get("type") == "message":
        content = item.get("content")
        if isinstance(content, str):
            said: Item = {"type": "output_text", "text": content, "annotations": []}
            asked: Item = {"type": "input_text", "text": content}
            item["content"] = [said if item.get("role") == "assistant" else asked]
        item.setdefault("status", "completed")
    return item


def _trimmed_part(part: Mapping[str, Any]) -> Item:
    kept: Item = {name: value for name in _KEPT if isinstance(value := part.get(name), str)}
    return kept | {"annotations": []} if kept.get("type") == "output_text" else kept


def sealed(thought: str) -> str:
    """Return a thought as `encrypted_content`, for clients that keep their conversations themselves."""
    return _SEALED + base64.urlsafe_b64encode(thought.encode()).decode()


def _opened(content: Any) -> str | None:
    if not isinstance(content, str) or not content.startswith(_SEALED):
        return None  # another server's
    try:
        return base64.b64decode(content.removeprefix(_SEALED), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _message(chat: ChatBuilder, item: Item, path: str) -> None:
    role, content = item.get("role"), item.get("content")
    if role not in _ROLES:
        raise bad_request(f"{path}.role: expected {', '.join(_ROLES)}, got {shown(role)}.", f"{path}.role")
    if content is None:
        raise bad_request(f"{path}.content: this field is required.", f"{path}.content", "missing_required_parameter")
    if role == "user" and _shows(content):
        chat.user(*_pieces(content, f"{path}.content"))
        return
    text = _text(content, f"{path}.content", "" if role == "assistant" else "\n")
    if role in _SYSTEM:
        chat.system(text)
    elif role == "user":
        chat.user(text)
    else:
        chat.said(text)


def _shows(content: Any) -> TypeGuard[list[Any]]:
    """Tell whether images are among the parts."""
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") == _IMAGE for part in content
    )


def _pieces(content: list[Any], path: str) -> list[Piece]:
    """Return texts and images, in their order."""
    return [_piece(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _piece(part: Any, path: str) -> Piece:
    if not isinstance(part, Mapping) or part.get("type") != _IMAGE:
        return _part(part, path)
    url = part.get("image_url")
    if isinstance(url, str) and url:
        return image_part(url, path)
    text = f"{path}.image_url: this field is required; files aren't kept here, so a file_id names none."
    raise bad_request(text, f"{path}.image_url", "missing_required_parameter")


def _text(content: Any, path: str, between: str = "") -> str:
    """Return the text of a content, or of a tool's output: a string, or parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong_type(path, "a string or a list of parts")
    return between.join(_part(part, f"{path}[{index}]") for index, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in _TEXTS and kind != "refusal":
        text = f"{path}: content of type {shown(kind)} is not supported; use input_text, or a user's input_image."
        raise bad_request(text, path, "unsupported_value")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise _wrong_type(path, "a part with a text")
    return text


def _call(chat: ChatBuilder, item: Item, path: str) -> None:
    call_id, name = _string(item, "call_id", path), _string(item, "name", path)
    if item.get("namespace"):
        name = Member(_string(item, "namespace", path), name).whole
    chat.call(call_id, name, _string(item, "arguments", path), cut=_cut(item))


def _result(chat: ChatBuilder, item: Item, path: str) -> None:
    call_id = _string(item, "call_id", path)
    output, place = item.get("output"), f"{path}.output"
    pieces = _pieces(output, place) if _shows(output) else [_text(output, place, "\n")]
    chat.result(call_id, pieces, f"{path}.call_id")


def _tool_call(chat: ChatBuilder, item: Item, path: str) -> None:
    """Add a call of a tool that is no function to the client."""
    kind = CALLS[item["type"]]
    said = item.get(kind.field)
    if not isinstance(said, str if kind is CUSTOM else Mapping):
        raise _wrong_type(f"{path}.{kind.field}", "a string" if kind is CUSTOM else "an object")
    name = kind.name or _string(item, "name", path)
    chat.call(_call_id(item, path), name, msgspec.json.encode(kind.arguments(said)).decode(), cut=_cut(item))


def _cut(item: Item) -> bool:
    """Tell whether an answer's limit fell within this call."""
    return item.get("status") == "incomplete"


def _tool_output(chat: ChatBuilder, item: Item, path: str) -> None:
    output = item.get("output")
    if isinstance(output, list) and item["type"] == "shell_call_output":
        text = msgspec.json.encode(output).decode()  # of each command: what it said, and how it ended
    else:
        text = _text(output if output is not None else item.get("status") or "", f"{path}.output", "\n")
    chat.result(_call_id(item, path), text, f"{path}.call_id")


def _call_id(item: Item, path: str) -> str:
    """Return a call's id; older clients name an output's call by `id`."""
    return _string(item, "call_id" if item.get("call_id") is not None or not item.get("id") else "id", path)


def _reasoning(chat: ChatBuilder, item: Item, path: str) -> None:
    if thought := _thought(item, path):
        chat.thought(thought)


def _thought(item: Item, path: str) -> str:
    if content := item.get("content"):
        return _text(content, f"{path}.content")
    opened = _opened(item.get("encrypted_content"))
    return opened if opened is not None else _text(item.get("summary") or [], f"{path}.summary", "\n")


def _string(item: Item, name: str, path: str) -> str:
    value = item.get(name)
    if value is None:
        raise bad_request(f"{path}.{name}: this field is required.", f"{path}.{name}", "missing_required_parameter")
    if not isinstance(value, str) or not (value or name == "arguments"):
        raise _wrong_type(f"{path}.{name}", "a string")
    if len(value) > MOST_ID and name != "arguments":
        raise _wrong_type(f"{path}.{name}", f"at most {MOST_ID} characters")
    return value


def _wrong_type(path: str, expected: str) -> ApiError:
    return bad_request(f"{path}: expected {expected}.", path, "invalid_type")


_ADDERS: Final[dict[str, Callable[[ChatBuilder, Item, str], None]]] = {
    "message": _message, "function_call": _call, "function_call_output": _result, "reasoning": _reasoning,
    **dict.fromkeys(CALLS, _tool_call), **{f"{call}_output": _tool_output for call in CALLS},
}  # fmt: skip
