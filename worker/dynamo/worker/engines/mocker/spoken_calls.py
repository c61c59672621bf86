"""Calls of tools, as models of each family write them: for prompts that end by asking for some. Pure.

The mocker sees no tools, only tokens. So whoever tests a client says which call the "model" decides on, at the end of
what the user says: `call get_weather {"city": "Paris"} call get_time {}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

LONGEST_TRIGGER: Final = 2048
"""Tokens of a prompt's end that are looked at."""
_BEHIND: Final = 80
"""Characters that a template may put behind what the user said. A tool's answer is farther away."""
_MOST: Final = 16
_ASKED: Final = re.compile(r"\bcall ([A-Za-z_][\w.\-]{0,63}) ?(?=\{)")
_READ: Final = json.JSONDecoder()


class SpokenCall(NamedTuple):
    """A tool, and its arguments."""

    name: str
    arguments: dict[str, Any]


def calls_asked_for(text: str) -> list[SpokenCall]:
    """Return the calls that the end of a prompt asks for."""
    calls: list[SpokenCall] = []
    at, end = 0, 0
    while len(calls) < _MOST and (match := _ASKED.search(text, at)):
        try:
            arguments, end = _READ.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            at = match.end()
            continue
        if text[at : match.start()].strip():
            calls = []  # others stand before it, with text between: those were asked for earlier
        calls.append(SpokenCall(match[1], arguments))
        at = end
    return calls if calls and len(text) - end <= _BEHIND else []


def spoken(parser: str, calls: list[SpokenCall]) -> str | None:
    """Write calls as that parser reads them; None for a family that isn't known here."""
    write = _FORMS.get(parser)
    return None if write is None else write(calls)


def _json(call: SpokenCall, name: str = "arguments") -> str:
    return json.dumps({"name": call.name, name: call.arguments}, ensure_ascii=False)


def _each(pattern: str, between: str = "\n") -> Callable[[list[SpokenCall]], str]:
    """Write one call after the other: `{json}`, `{llama}`, `{name}`, `{arguments}` and `{index}` are its own."""

    def write(calls: list[SpokenCall]) -> str:
        return between.join(
            pattern.replace("{json}", _json(call)).replace("{llama}", _json(call, "parameters"))
            .replace("{name}", call.name).replace("{index}", str(index))
            .replace("{arguments}", json.dumps(call.arguments, ensure_ascii=False))
            for index, call in enumerate(calls)
        )  # fmt: skip

    return write


def _around(before: str, inner: Callable[[list[SpokenCall]], str], after: str) -> Callable[[list[SpokenCall]], str]:
    return lambda calls: f"{before}{inner(calls)}{after}"


def _tags(before: str, argument: str, after: str) -> Callable[[list[SpokenCall]], str]:
    """Write calls whose arguments stand between tags."""

    def write(calls: list[SpokenCall]) -> str:
        return "\n".join(
            before.format(call.name)
            + "".join(argument.format(key, _text(value)) for key, value in call.arguments.items())
            + after
            for call in calls
        )

    return write


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _python(calls: list[SpokenCall]) -> str:
    def written(call: SpokenCall) -> str:
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"

    return f"[{', '.join(map(written, calls))}]"


_HERMES: Final = _each("<tool_call>\n{json}\n</tool_call>")
_LIST: Final = _around("[", _each("{json}", ", "), "]")
_LISTED: Final = _around("<tool_calls>", _LIST, "</tool_calls>")
_FUNCTION: Final = ("<function={}>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n")
_CODER: Final = _tags(f"<tool_call>\n{_FUNCTION[0]}", _FUNCTION[1], f"{_FUNCTION[2]}</tool_call>")
_SEED: Final = _tags(f"<seed:tool_call>\n{_FUNCTION[0]}", _FUNCTION[1], f"{_FUNCTION[2]}</seed:tool_call>")
_GLM: Final = _tags("<tool_call>{}\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>")
_INVOKE: Final = _tags('<invoke name="{}">\n', '<parameter name="{}">{}</parameter>\n', "</invoke>")
_DEEPSEEK: Final = _around(
    "<｜tool▁calls▁begin｜>",
    _each("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>", ""),
    "<｜tool▁calls▁end｜>",
)
_KIMI: Final = _around(
    "<|tool_calls_section_begin|>",
    _each("<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>", ""),
    "<|tool_calls_section_end|>",
)
_FORMS: Final[Mapping[str, Callable[[list[SpokenCall]], str]]] = {
    "deepseek_v3_1": _DEEPSEEK, "glm45": _GLM, "glm47": _GLM, "granite": _around("<|tool_call|>", _LIST, ""),
    "harmony": _each("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>", ""),
    "hermes": _HERMES, "hunyuan_a13b": _LISTED, "jamba": _LISTED, "kimi_k2": _KIMI, "kimi_k25": _KIMI,
    "llama3_json": _each("{llama}", "; "), "longcat": _each("<longcat_tool_call>{json}</longcat_tool_call>"),
    "minimax_m2": _around("<minimax:tool_call>\n", _INVOKE, "\n</minimax:tool_call>"),
    "mistral": _around("[TOOL_CALLS]", _LIST, ""), "nemotron_deci": _around("<TOOLCALL>", _LIST, "</TOOLCALL>"),
    "nemotron_nano": _CODER, "phi4": _around("functools", _LIST, ""), "pythonic": _python, "qwen25": _HERMES,
    "qwen3": _HERMES, "qwen3_coder": _CODER, "seed_oss": _SEED,
}  # fmt: skip
