"""Messages and their content blocks, as clients of the Messages API send them, to the turns of a chat. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dynamo.frontend.errors import ApiError, bad_request, shown
from dynamo.frontend.images.parts import image_part
from dynamo.frontend.openai.chat_builder import ChatBuilder, Piece
from dynamo.frontend.openai.responses_input import MOST_ID

Block = Mapping[str, Any]
_LONGEST_TYPE: Final = 64
"""Characters of an image's media type; the image itself says what it is."""
_PREAMBLE: Final = "x-anthropic-billing-header:"
"""How a block of Claude Code begins that no model should see: it is another one in each request, which would spoil
every cache."""


def system_of(system: str | Sequence[Block] | None) -> str:
    """Return the system's text."""
    if system is None or isinstance(system, str):
        return system or ""
    texts = [_text_block(block, f"system[{index}]") for index, block in enumerate(system)]
    return "\n".join(text for text in texts if not text.startswith(_PREAMBLE))


def add_messages(chat: ChatBuilder, messages: Sequence[Block]) -> None:
    """Add messages to a chat; a 400 names the block that can't be."""
    adders: dict[str, Callable[[str], None]] = {"user": chat.user, "assistant": chat.said, "system": chat.system}
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in adders:
            path = f"messages[{index}].role"
            raise bad_request(f"{path}: expected {', '.join(adders)}, got {shown(role)}.", path)
        if isinstance(content, str):
            adders[role](content)
            continue
        path = f"messages[{index}]"
        if not isinstance(content, list):
            raise _wrong(f"{path}.content", "a string or a list of blocks")
        _add_blocks(chat, role, content, f"{path}.content")


def _add_blocks(chat: ChatBuilder, role: str, content: list[Any], path: str) -> None:
    pieces: list[Piece] = []
    for index, block in enumerate(content):
        where = f"{path}[{index}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        add = _ADDERS.get((role, kind)) if isinstance(kind, str) else None
        if add is not None:
            add(chat, block, where)
        elif role == "assistant":
            chat.said(_text_block(block, where))
        elif role == "user":
            pieces.append(_piece(block, where))
        else:
            pieces.append(_text_block(block, where))
    if role == "user" and pieces:
        chat.user(*_texts_joined(pieces))
    elif pieces:
        chat.system("\n".join(map(str, pieces)))


def _texts_joined(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces, as one text where there are no images."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return ["\n".join(texts)] if len(texts) == len(pieces) else pieces


def _piece(block: Any, path: str) -> Piece:
    if isinstance(block, Mapping) and block.get("type") == "image":
        return image_part(_url_of(block.get("source"), f"{path}.source"), path)
    return _text_block(block, path)


def _url_of(source: Any, path: str) -> str:
    """Return an image's source as a URL."""
    kind = source.get("type") if isinstance(source, Mapping) else None
    if kind == "url" and isinstance(url := source.get("url"), str) and url:
        return url
    if kind == "base64" and isinstance(data := source.get("data"), str) and data:
        return f"data:{str(source.get('media_type'))[:_LONGEST_TYPE]};base64,{data}"
    text = f"{path}: expected type base64 with media_type and data, or type url with a url; files aren't kept here."
    raise bad_request(text, path, "unsupported_value")


def _text_block(block: Any, path: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    source = block.get("source") if kind == "document" else None
    if isinstance(source, Mapping) and source.get("type") == "text":
        text = source.get("data")
    elif kind == "text":
        text = block.get("text")
    else:
        taken = f"blocks of type {shown(kind)} are not supported here; send text, or a user's image."
        raise bad_request(f"{path}: {taken}", path, "unsupported_value")
    if not isinstance(text, str):
        raise _wrong(path, "a block with a text")
    return text


def _thinking(chat: ChatBuilder, block: Block, path: str) -> None:
    thought = block.get("thinking")
    if not isinstance(thought, str):
        raise _wrong(f"{path}.thinking", "a string")
    chat.thought(thought)


def _redacted(chat: ChatBuilder, block: Block, path: str) -> None:
    """Another server's thoughts, which nobody here can read."""


def _tool_use(chat: ChatBuilder, block: Block, path: str) -> None:
    given = block.get("input")
    if not isinstance(given, Mapping):
        raise _wrong(f"{path}.input", "an object")
    chat.call(_string(block, "id", path), _string(block, "name", path), msgspec.json.encode(given).decode())


def _tool_result(chat: ChatBuilder, block: Block, path: str) -> None:
    call_id, content = _string(block, "tool_use_id", path), block.get("content")
    if isinstance(content, list):
        pieces = _texts_joined([_piece(part, f"{path}.content[{index}]") for index, part in enumerate(content)])
    elif isinstance(content, str | None):
        pieces = [content or ""]
    else:
        raise _wrong(f"{path}.content", "a string or a list of blocks")
    chat.result(call_id, pieces, f"{path}.tool_use_id")


def _string(block: Block, name: str, path: str) -> str:
    value = block.get(name)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{path}.{name}: this field is required.", f"{path}.{name}", "missing_required_parameter")
    if len(value) > MOST_ID:
        raise _wrong(f"{path}.{name}", f"at most {MOST_ID} characters")
    return value


def _wrong(path: str, expected: str) -> ApiError:
    return bad_request(f"{path}: expected {expected}.", path, "invalid_type")


_ADDERS: Final[dict[tuple[str, str], Callable[[ChatBuilder, Block, str], None]]] = {
    ("assistant", "thinking"): _thinking, ("assistant", "redacted_thinking"): _redacted,
    ("assistant", "tool_use"): _tool_use, ("user", "tool_result"): _tool_result,
}  # fmt: skip
