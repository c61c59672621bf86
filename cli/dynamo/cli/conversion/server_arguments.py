"""Command lines of model servers, read into the fields of a component. Pure.

Flags whose meaning a pipeline has a field for become that field; an engine's other flags stay its arguments, by the
engine's own names. Which server it is, its program says.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from dynamo.cli.conversion.draft import ConversionError, Draft

MOST_WORDS: Final = 512
_SHELLS: Final = frozenset(("sh", "bash", "/bin/sh", "/bin/bash"))
_MODULES: Final = {
    "dynamo.vllm": "vllm", "dynamo.sglang": "sglang", "dynamo.trtllm": "trtllm", "dynamo.llama_cpp": "llamacpp",
    "dynamo.mocker": "mocker", "dynamo.frontend": "frontend", "dynamo.planner": "planner",
    "vllm.entrypoints.openai.api_server": "vllm", "sglang.launch_server": "sglang", "llama_cpp.server": "llamacpp",
}  # fmt: skip
_PROGRAMS: Final = {"vllm": "vllm", "sglang": "sglang", "trtllm-serve": "trtllm", "llama-server": "llamacpp"}
_IMAGES: Final = {
    "vllm-openai": "vllm", "vllm-runtime": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm",
    "tensorrtllm-runtime": "trtllm", "llama.cpp": "llamacpp",
}  # fmt: skip
_MODEL: Final = frozenset(("model", "model_path", "m", "hf_repo", "hf"))
_CONTEXT: Final = frozenset(("max_model_len", "context_length", "ctx_size", "c", "max_seq_len"))
_MODEL_FIELDS: Final = {
    **dict.fromkeys(("served_model_name", "alias", "a", "model_name"), "name"),
    **dict.fromkeys(_CONTEXT, "contextLength"),
    **dict.fromkeys(("tool_call_parser", "dyn_tool_call_parser"), "toolCallParser"),
    **dict.fromkeys(("reasoning_parser", "dyn_reasoning_parser"), "reasoningParser"),
}
_COMPONENT_FIELDS: Final = {
    **dict.fromkeys(("tensor_parallel_size", "tp", "tp_size"), "tensorParallelSize"),
    **dict.fromkeys(("block_size", "page_size", "kv_cache_block_size"), "kvCacheBlockSize"),
}
_ROLES: Final = frozenset(("is_prefill_worker", "is_decode_worker", "disaggregation_mode"))
_OURS: Final = frozenset(
    ("host", "port", "uvicorn_log_level", "enable_auto_tool_choice", "metrics", "jinja", "store_kv",
     "discovery_backend", "request_plane", "event_plane", "connector", "disable_log_requests", "http_port")
)  # fmt: skip
"""What a pipeline's parts do by themselves, or choose by themselves."""
_LEFT_OUT: Final = {
    **dict.fromkeys(
        ("api_key", "hf_token", "ssl_keyfile"),
        "holds a secret: put it into a Secret (frontend.apiKeys, model.tokenSecret)",
    ),
    **dict.fromkeys(
        ("chat_template", "chat_template_file"), "is a file of the image: put its text into model.chatTemplate"
    ),
}
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?")


class Server(NamedTuple):
    """What a command line starts."""

    kind: str
    """An engine, `frontend`, `planner`, or empty: nothing that is known here."""
    words: tuple[str, ...]
    """Its arguments."""


def server_of(command: Sequence[Any], args: Sequence[Any], image: str = "") -> Server:
    """Return which server a container runs, by its words or else by its image."""
    words = [str(word) for word in (*command, *args)]
    if words and words[0] in _SHELLS and len(words) >= 3 and words[1].startswith("-"):
        words = _split(words[2])
    if len(words) > MOST_WORDS:
        raise ConversionError(f"a command of {len(words)} words: at most {MOST_WORDS} are read")
    for place, word in enumerate(words[:8]):
        if word == "-m" and place + 1 < len(words) and (kind := _MODULES.get(words[place + 1])):
            return Server(kind, tuple(words[place + 2 :]))
        if kind := _PROGRAMS.get(word.rpartition("/")[2]):
            return Server(kind, tuple(words[place + 1 :]))
    name = image.partition("@")[0].rpartition(":")[0] or image
    kind = next((kind for part, kind in _IMAGES.items() if name.rpartition("/")[2].startswith(part)), "")
    return Server(kind, tuple(words))


def read_flags(server: Server, fields: dict[str, Any], draft: Draft, path: str) -> None:
    """Put what a server's flags say into a component's fields and the draft's model."""
    engine_args: dict[str, Any] = {}
    model: dict[str, str] = {}
    for name, value in _flags(server):
        if name in _MODEL or name == "revision":
            model["revision" if name == "revision" else "source"] = str(value)
        elif name in _MODEL_FIELDS and (name not in _CONTEXT or isinstance(value, int)):
            draft.spec["model"][_MODEL_FIELDS[name]] = value if name in _CONTEXT else str(value)
        elif name in _COMPONENT_FIELDS and isinstance(value, int):
            fields[_COMPONENT_FIELDS[name]] = value
        elif name in _ROLES:
            fields["role"] = "prefill" if "prefill" in (name if value is True else str(value)) else "decode"
        elif name == "" or name in _LEFT_OUT:
            word = f"--{name.replace('_', '-')}" if name else str(value)[:80]
            draft.remark(f"{path} {word}", _LEFT_OUT.get(name, "is no flag that is known: left out"))
        elif name not in _OURS:
            engine_args[name] = value
    if "source" in model:
        draft.model(_source(model["source"], model.get("revision", "")), path)
    if engine_args:
        fields["engineArgs"] = engine_args


def _source(model: str, revision: str = "") -> str:
    if "://" in model:
        return model
    if model.startswith("/"):
        return f"file://{model}"
    return f"hf://{model}" + (f"@{revision}" if revision else "")


def _flags(server: Server) -> Iterator[tuple[str, Any]]:
    """Yield flags with their values; the model may stand alone in front."""
    words, place = list(server.words), 0
    if words[:1] == ["serve"]:
        words = words[1:]
    if server.kind in ("vllm", "trtllm") and words and not words[0].startswith("-"):
        yield "model", words.pop(0)
    while place < len(words):
        word, place = words[place], place + 1
        if not word.startswith("-") or word in ("-", "--"):
            yield "", word
            continue
        name, given, text = word.lstrip("-").partition("=")
        if not given and place < len(words) and not _is_flag(words[place]):
            given, text, place = "=", words[place], place + 1
        yield name.replace("-", "_"), _value(text) if given else True


def _is_flag(word: str) -> bool:
    return word.startswith("-") and _NUMBER.fullmatch(word) is None


def _value(text: str) -> Any:
    """Return a flag's value as YAML would have it."""
    if match := _NUMBER.fullmatch(text):
        return float(text) if match[1] else int(text)
    if text in ("true", "True", "false", "False"):
        return text.lower() == "true"
    if text[:1] in "{[":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise ConversionError(f"the command {line[:60]!r} can't be read: {error}") from None
