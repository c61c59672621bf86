"""The shots of the named attacks (`attacks.py`): hostile requests of one kind each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tests.fuzz.firing import Shot, post
from tests.fuzz.judging import FORGED
from tests.fuzz.site import MODEL
from tests.fuzz.targets import rawhttp

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
LARGE: Final = 3_900_000


def chat(content: str | list[Any], model: str = MODEL, **fields: Any) -> Shot:
    """A conversation."""
    body = {"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 16, **fields}
    return post(CHAT, body, x_request_timeout_ms="20000")


def text(prompt: Any, model: str = MODEL, path: str = TEXT, **fields: Any) -> Shot:
    """A prompt."""
    return post(path, {"model": model, "prompt": prompt, "max_tokens": 16, **fields}, x_request_timeout_ms="20000")


def raw(path: str, body: bytes) -> Shot:
    """JSON as it stands."""
    return post(path, body, x_request_timeout_ms="20000")


def model_names() -> list[Shot]:
    name = "x" * LARGE
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": "a"}]},
        TEXT: {"prompt": "a"},
        "/v1/embeddings": {"input": "a"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [1]},
        "/busy_threshold": {},
    }
    return [post(path, {"model": name, **body}) for path, body in bodies.items()]


def surrogates(depth: int, wide: int) -> bytes:
    branch = b"[" * depth + b",".join([b'"aaaaaaaa"'] * 20) + b"]" * depth
    return b'{"model":"m","prompt":[' + b",".join([branch] * wide) + b',"\\ud800"]}'


def forging() -> list[Shot]:
    breaks = ("\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\x1b[2K\x1b[1G")
    lines = [f"x{sign}{FORGED}" for sign in breaks]
    shots = [post(TEXT, {"model": line, "prompt": "a"}) for line in lines]
    shots += [
        post(CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, line: 1})
        for line in lines
    ]
    shots += [post("/tokenize", {"model": line, "prompt": "a"}) for line in lines]
    return shots + [post(TEXT, {"model": MODEL, "prompt": "a", "max_tokens": 1, "nvext": {line: 1}}) for line in lines]


def slow_bodies() -> list[Shot]:
    head = rawhttp.good(b" " * 100_000)[:-100_000]
    pieces = [head, *[b" "] * 24]
    slow = Shot("slow body", pieces, pause=0.5, patience=14, silence_is_fine=True, source="127.0.0.66")
    return [slow] * 20


def busy(**headers: str) -> Shot:
    body = {"model": MODEL, "active_decode_blocks_threshold": 0.0}
    return replace(post("/busy_threshold", body, **headers), source="127.0.0.6")


def chunked() -> list[Shot]:
    head = rawhttp.good(b"", b"transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
    return [Shot("one-byte chunks", [head, b"1\r\n \r\n" * 600_000, b"0\r\n\r\n"], patience=30, silence_is_fine=True)]


def json(field: str, value: bytes, path: str = CHAT, more: bytes = b"") -> list[Shot]:
    fields = {CHAT: b'"messages":[{"role":"user","content":"a"}]', TEXT: b'"prompt":"a"'}[path]
    return [raw(path, b'{"model":"m","max_tokens":2,%s,"%s":%s%s}' % (fields, field.encode(), value, more))]


def repeated(item: bytes, size: int = LARGE) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def keys(form: bytes, size: int = LARGE) -> bytes:
    return b"{" + b",".join([form % number for number in range(size // (len(form) + 4))]) + b"}"


def calls() -> list[Shot]:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "[" + "[]," * (LARGE // 3 - 9) + "[]]"},
    }
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [call]}]
    return [post(CHAT, {"model": MODEL, "messages": messages, "max_tokens": 2}, x_request_timeout_ms="20000")]


def constrained(*models: str, **fields: Any) -> Callable[[], list[Shot]]:
    return lambda: [chat("a", model, **fields) for model in models]
