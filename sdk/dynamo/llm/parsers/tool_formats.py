"""How the families of models write calls of tools: the table, by the parsers' names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, Literal

from dynamo.llm.parsers import json_calls, xml_calls
from dynamo.llm.parsers.call_spans import Block, JsonUntil, JsonValue, PythonList, Until
from dynamo.llm.parsers.call_streams import StreamForm, in_json, in_mistral, named
from dynamo.llm.parsers.json_calls import Read
from dynamo.llm.parsers.markers import Markers
from dynamo.llm.parsers.section_calls import read_mistral, read_python, section
from dynamo.llm.parsers.xml_calls import TagForm


@dataclass(frozen=True)
class ToolFormat:
    """One family's."""

    blocks: dict[str, Callable[[int], Block]]
    """By what opens a call, what finds its end, behind so many characters."""
    read: Read
    bare: tuple[str, Callable[[], Block]] | None = None
    """A character that opens one where nothing stands before it, and what finds its end."""
    stream: StreamForm | TagForm | None = None
    """How its calls are said while they are written; None: whole."""
    tails: tuple[str, ...] = ()
    """What may stand behind a call and says nothing."""
    tokens: tuple[str, ...] = ()
    """Special tokens that the reader needs to see; text doesn't show them otherwise."""
    ids: Literal["call", "nine"] = "call"
    """Form of the ids: `call_…`, or nine letters and digits, which Mistral's templates insist on."""

    @cached_property
    def markers(self) -> Markers:
        """Return what opens a call."""
        return Markers(self.blocks)


def _wrapped(opener: str, closer: str, *tokens: str) -> ToolFormat:
    """Make a format of JSON between two markers."""
    closers = partial(JsonUntil, closer=closer)
    return ToolFormat(
        {opener: closers}, json_calls.between(opener, closer), stream=in_json(opener, closer=closer), tokens=tokens
    )


_VALUE: Final = JsonValue
_HERMES: Final = _wrapped("<tool_call>", "</tool_call>", "<tool_call>", "</tool_call>")
_LISTED: Final = _wrapped("<tool_calls>", "</tool_calls>")
_LLAMA: Final = ToolFormat(
    {"<|python_tag|>": _VALUE}, json_calls.behind("<|python_tag|>"), bare=("{", partial(_VALUE, 0)),
    stream=in_json("<|python_tag|>"), tails=(";",),
    tokens=("<|python_tag|>",),
)  # fmt: skip
_MISTRAL: Final = ToolFormat(
    {"[TOOL_CALLS]": partial(_VALUE, header=True)}, read_mistral, stream=in_mistral(), tails=("[/TOOL_CALLS]",),
    tokens=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[/TOOL_CALLS]"), ids="nine",
)  # fmt: skip
_PHI: Final = ToolFormat(
    {"functools[": lambda start: _VALUE(start - 1), "functools{": lambda start: _VALUE(start - 1)},
    json_calls.behind("functools"), stream=in_json("functools"),
)  # fmt: skip
_GRANITE: Final = ToolFormat(
    {"<|tool_call|>": _VALUE, "<tool_call>": _VALUE}, json_calls.behind("<|tool_call|>", "<tool_call>"),
    stream=in_json("<|tool_call|>", "<tool_call>"), tails=("</tool_call>",),
    tokens=("<|tool_call|>", "<tool_call>", "</tool_call>"),
)  # fmt: skip
_CODER: Final = ToolFormat(
    {"<tool_call>": partial(Until, closer="</tool_call>"), "<function=": partial(Until, closer="</function>")},
    xml_calls.read_coder, stream=xml_calls.coder_form, tails=("</tool_call>",), tokens=("<tool_call>", "</tool_call>"),
)  # fmt: skip
_SEED: Final = ToolFormat(
    {"<seed:tool_call>": partial(Until, closer="</seed:tool_call>")}, xml_calls.read_seed, stream=xml_calls.seed_form,
    tokens=("<seed:tool_call>", "</seed:tool_call>"),
)  # fmt: skip
_GLM: Final = ToolFormat(
    {"<tool_call>": partial(Until, closer="</tool_call>")}, xml_calls.read_glm, stream=xml_calls.glm_form,
    tokens=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)  # fmt: skip
_MINIMAX: Final = ToolFormat(
    {"<minimax:tool_call>": partial(Until, closer="</minimax:tool_call>")}, xml_calls.read_minimax,
    stream=xml_calls.minimax_form,
    tokens=("<minimax:tool_call>", "</minimax:tool_call>"),
)  # fmt: skip

_CALLS: Final = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL: Final = ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")


def _deepseek(call: str, head: str, end: str) -> ToolFormat:
    opener, closer = _CALLS
    marks = dict(zip(("begin", "middle", "end"), _CALL, strict=True))
    read = section((opener,), (closer,), call.format(**marks))
    over = end.format(**marks)
    stream = named(rf"(?P<mark>{opener})?+(?:{over})?+\s*+{head.format(**marks)}", rf"(?:{over})?\s*(?:{closer})?\s*")
    return ToolFormat({opener: partial(Until, closer=closer)}, read, stream=stream, tokens=(*_CALLS, *_CALL))


def _dsml(name: str) -> ToolFormat:
    opener, closer = f"<｜DSML｜{name}>", f"</｜DSML｜{name}>"
    return ToolFormat(
        {opener: partial(Until, closer=closer)}, xml_calls.dsml(opener, closer), tokens=("｜DSML｜",),
        stream=xml_calls.dsml_form(opener, closer),
    )  # fmt: skip


_KIMI_OPENERS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_KIMI_CLOSERS: Final = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
_KIMI_CALL: Final = ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>")
_KIMI: Final = ToolFormat(
    {opener: partial(Until, closer=closer) for opener, closer in zip(_KIMI_OPENERS, _KIMI_CLOSERS, strict=True)},
    section(
        _KIMI_OPENERS, _KIMI_CLOSERS,
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^<\s:]+)(?::\d+)?)\s*"
        r"<\|tool_call_argument_begin\|>(?P<arguments>.*?)<\|tool_call_end\|>",
    ),
    stream=named(
        r"(?P<mark><\|tool_calls?_section_begin\|>)?+\s*+(?:<\|tool_call_end\|>)?+\s*+<\|tool_call_begin\|>\s*+"
        r"(?P<id>(?:functions\.)?(?P<plain>[^<\s:]{1,256})(?::\d{1,9})?)\s*+<\|tool_call_argument_begin\|>\s*+",
        r"\s*(?:<\|tool_call_end\|>)?\s*(?:<\|tool_calls?_section_end\|>)?",
    ),
    tokens=(*_KIMI_OPENERS, *_KIMI_CLOSERS, *_KIMI_CALL),
)  # fmt: skip

TOOLS: Final[dict[str, ToolFormat]] = {
    "deepseek_v3": _deepseek(
        r"{begin}\s*\w+{middle}(?P<name>[^<\n]+)\n\s*```json\n(?P<arguments>.*?)\n?```\s*{end}",
        r"{begin}\s*+\w{{1,32}}+{middle}(?P<plain>[^<\n]{{1,256}}+)\n\s*+```json\n\s*+",
        r"\n?```\s*{end}",
    ),
    "deepseek_v3_1": _deepseek(
        r"{begin}(?P<name>[^<\n]+){middle}(?P<arguments>.*?){end}",
        r"{begin}(?P<plain>[^<\n]{{1,256}}+){middle}\s*+",
        r"\s*{end}",
    ),
    "deepseek_v3_2": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "glm45": _GLM,
    "glm47": _GLM,
    "granite": _GRANITE,
    "hermes": _HERMES,
    "hunyuan_a13b": _LISTED,
    "jamba": _LISTED,
    "kimi_k2": _KIMI,
    "kimi_k25": _KIMI,
    "llama3_json": _LLAMA,
    "longcat": _wrapped("<longcat_tool_call>", "</longcat_tool_call>", "<longcat_tool_call>", "</longcat_tool_call>"),
    "minimax_m2": _MINIMAX,
    "mistral": _MISTRAL,
    "nemotron_deci": _wrapped("<TOOLCALL>", "</TOOLCALL>"),
    "nemotron_nano": _CODER,
    "phi4": _PHI,
    "pythonic": ToolFormat({}, read_python, bare=("[", PythonList)),
    "qwen25": _HERMES,
    "qwen3": _HERMES,
    "qwen3_coder": _CODER,
    "seed_oss": _SEED,
}
"""`harmony` is not here: its calls are messages (`harmony.py`)."""
