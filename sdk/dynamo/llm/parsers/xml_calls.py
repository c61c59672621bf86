"""Calls whose arguments are texts between tags: qwen3_coder, minimax_m2, glm45, DeepSeek's DSML.

`Tags` reads a whole block, `TagStream` says its calls while they are written. A text says nothing of its type, so the
tool's JSON schema does: a string stays as it stands, anything else is read as JSON, and is a string where it is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from dynamo.llm.parsers.call_streams import LONGEST_HEAD, without_end
from dynamo.llm.parsers.events import Call, CallStart, CallText, Content, Event, Tools
from dynamo.llm.parsers.json_calls import Read, dumps, in_turn, loads, writable
from dynamo.llm.parsers.markers import LONGEST_SPACE, Markers, behind_space, leads

_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}
"""What templates print for Python's values, and models after them."""
_MOST_VARIANTS: Final = 64
"""Parts of a schema that are looked at for each argument of a call."""


def typed(text: str, schema: Any) -> Any:
    """Return the value that `text` stands for in an argument of this JSON schema."""
    if is_text(schema):
        return text
    kinds = set(_kinds(schema))
    plain = text.strip()
    if "string" in kinds:
        return None if kinds == {"string", "null"} and plain == "null" else text
    word = plain.lower()
    if word in _WORDS and (not kinds or kinds & {"boolean", "null"}):
        return _WORDS[word]
    try:
        return loads(plain)
    except ValueError:
        return text


def is_text(schema: Any) -> bool:
    """Tell whether an argument of this JSON schema is a string, whatever stands there."""
    kinds = set(_kinds(schema))
    return bool(kinds) and kinds <= {"string"}


def _kinds(schema: Any) -> Iterator[str]:
    """Yield the types that a schema allows; none where it doesn't say. Of a huge one, by what is looked at first."""
    left = [schema]
    for _ in range(_MOST_VARIANTS):
        if not left:
            return
        if not isinstance(schema := left.pop(), Mapping):
            continue
        kind = schema.get("type")
        if isinstance(kind, str):
            yield kind
        elif isinstance(kind, list):
            yield from (name for name in kind[:_MOST_VARIANTS] if isinstance(name, str))
        elif isinstance(values := schema.get("enum"), list):
            yield "string" if all(isinstance(value, str) for value in values[:_MOST_VARIANTS]) else "mixed"
        for name in ("anyOf", "oneOf"):
            variants = schema.get(name)
            left += variants[:_MOST_VARIANTS] if isinstance(variants, list) else ()


class Tags:
    """One family's tags, as regular expressions with the groups `name` and `body`, or `key` and `value`.

    A value ends with the first tag that ends it where another one, or nothing, follows: it may hold tags of its own.
    """

    def __init__(self, opener: str, closer: str, call: str, argument: str, *, value_gap: str = "") -> None:
        self._opener, self._closer, self._gap = opener, closer, value_gap
        self._call, self._argument = (re.compile(pattern, re.DOTALL) for pattern in (call, argument))

    def read(self, text: str, tools: Tools) -> list[Call] | None:
        """Read a whole block; None where something in it is no call."""
        matches = in_turn(self._call, text.removeprefix(self._opener).removesuffix(self._closer))
        calls = [self._one(match, tools) for match in matches or ()]
        readable = [call for call in calls if call is not None]
        return readable if readable and len(readable) == len(calls) else None

    def _one(self, match: re.Match[str], tools: Tools) -> Call | None:
        name, body = match["name"].strip(), match["body"]
        matches = in_turn(self._argument, body)
        if matches is None or not writable(name):
            return None
        schemas = tools.get(name, {})
        return Call(name, dumps({match["key"].strip(): self._value(match, schemas) for match in matches}))

    def _value(self, match: re.Match[str], schemas: Mapping[str, Any]) -> Any:
        value = match["value"]
        if self._gap:
            value = value.removeprefix(self._gap).removesuffix(self._gap)
        if (quoted := match.groupdict().get("string")) is not None:
            return typed(value, {"type": "string" if quoted == "true" else "other"})
        return typed(value, schemas.get(match["key"].strip()))


@dataclass(frozen=True)
class TagForm:
    """Form of one family's calls, for saying them while they are written."""

    head: re.Pattern[str]
    """What stands before a call's arguments, from the block's opener or the last call on; group `name`."""
    argument: str
    """What every argument begins with."""
    key: re.Pattern[str]
    """The same, up to the value; groups `key` and, if any, `string`."""
    value_end: str
    call_end: str
    closer: str
    """The block's."""
    gap: str = ""
    """What the form puts around a value."""

    @cached_property
    def ends(self) -> Markers:
        """Return what may end a value."""
        return Markers({self.value_end, self.call_end, self.closer})

    def stream(self, known: Tools) -> TagStream:
        """Return what reads one block."""
        return TagStream(self, known)


class TagStream:
    """Stream of the calls of one block: texts as they are written, values of other types once they are whole.

    A call is said with the first of its arguments that is certain, so a block without one can still be content. What
    isn't said as it should be behind that breaks its arguments off.
    """

    def __init__(self, form: TagForm, known: Tools) -> None:
        self._form, self._known = form, known
        self._held, self._at = "", 0
        self._state = TagStream._head
        # Not bound to this object, which would then wait for the collector.
        self._events: list[Event] = []
        self._name, self._started, self._between = "", False, ""
        """Of the call that is read: its name, whether it was said, and what stands before its next argument."""
        self._schema: Any = None
        self._text: list[str] | None = None
        """Of a value that isn't said before it is whole."""
        self._fresh = True
        """Nothing of the value has come yet."""
        self._rest: list[str] = []
        """What stands behind calls and is none."""
        self.begun = False
        """A call has been said: the block can't be content any more."""

    def feed(self, text: str) -> list[Event]:
        """Return what is certain of this much more text."""
        if self._state == TagStream._lost:
            return []
        self._held, self._at, self._events = self._held[self._at :] + text, 0, []
        while self._state(self):
            pass
        return self._events

    def finish(self) -> list[Event]:
        """Return the rest of a block in which a call has begun."""
        form, rest, self._events = self._form, self._held[self._at :], []
        if self._state in (TagStream._head, TagStream._behind):
            rest = "".join(self._rest) + rest
            return [Content(rest)] if without_end(rest.strip(), form.closer).strip() else []
        if self._state == TagStream._value and rest.lstrip(form.gap).startswith(form.value_end):
            self._end_value(rest[: rest.index(form.value_end)])
            self._state, rest = TagStream._argument, rest[rest.index(form.value_end) + len(form.value_end) :]
        if self._state == TagStream._argument and not without_end(rest, form.closer).strip():
            self._end_call()
        return self._events

    # The states: each returns whether the next one can go on at once.

    def _lost(self) -> bool:
        self._held, self._at = "", 0
        return False

    def _behind(self) -> bool:
        self._rest.append(self._held[self._at :])
        return self._lost()

    def _head(self) -> bool:
        match = self._form.head.match(self._held, self._at, self._at + LONGEST_HEAD)
        if match is None:
            if len(self._held) - self._at < LONGEST_HEAD:
                return False
            self._state = TagStream._behind if self.begun else TagStream._lost
            return True
        self._name, self._at = match["name"].strip(), match.end()
        if not writable(self._name):
            return self._break_off()
        self._started, self._between, self._state = False, "{", TagStream._argument
        return True

    def _argument(self) -> bool:
        form, self._at = self._form, behind_space(self._held, self._at)
        literal, waits = leads(self._held, (form.argument, form.call_end, form.closer), self._at)
        if literal is None:
            return False if waits or self._at == len(self._held) else self._break_off()
        if literal != form.argument:
            self._at += len(literal) if literal == form.call_end else 0
            self._end_call()
            return True
        match = form.key.match(self._held, self._at, self._at + LONGEST_HEAD)
        if match is None:
            return self._break_off() if len(self._held) - self._at >= LONGEST_HEAD else False
        self._begin_value(match)
        return True

    def _value(self) -> bool:
        form, held = self._form, self._held
        match = form.ends.find(held, self._at)
        if match is None:
            end = len(held) - form.ends.begun(held, self._at)
            if form.gap and held.endswith(form.gap, self._at, end):
                end -= len(form.gap)
            self._take(end)
            return False
        if match[0] != form.value_end:
            self._take(match.start() - self._gap_before(match.start()))
            return self._break_off()
        ended, after = self._ends_at(match.end())
        if ended is None:
            self._take(match.start() - self._gap_before(match.start()))
            return False
        if not ended:
            self._take(match.end())
            return True
        self._end_value(held[self._at : match.start()])
        self._at, self._state = after, TagStream._argument
        return True

    # What they do.

    def _ends_at(self, at: int) -> tuple[bool | None, int]:
        """Tell whether a value ends here, and where the next argument may begin; None: that shows later."""
        form, after = self._form, behind_space(self._held, at)
        if after - at >= LONGEST_SPACE:
            return True, at
        literal, waits = leads(self._held, (form.argument, form.call_end, form.closer), after)
        if literal is None and (waits or after == len(self._held)):
            return None, at
        return literal is not None, after

    def _gap_before(self, end: int) -> int:
        gap = self._form.gap
        return len(gap) if gap and self._held.endswith(gap, self._at, end) else 0

    def _begin_value(self, match: re.Match[str]) -> None:
        key, quoted = match["key"].strip(), match.groupdict().get("string")
        if quoted is None:
            self._schema = self._known.get(self._name, {}).get(key)
        else:
            self._schema = {"type": "string" if quoted == "true" else "other"}
        self._between += f"{dumps(key)}: "
        self._text = None if is_text(self._schema) else []
        self._at, self._fresh, self._state = match.end(), True, TagStream._value

    def _take(self, end: int) -> None:
        """Take the value's text up to an index."""
        text, self._at = self._held[self._at : end], max(self._at, end)
        if not text:
            return
        if self._fresh and self._form.gap:
            text = text.removeprefix(self._form.gap)
        self._fresh = False
        if self._text is not None:
            self._text.append(text)
        elif text:
            self._say(('"' if self._between else "") + dumps(text)[1:-1])

    def _end_value(self, rest: str) -> None:
        gap = self._form.gap
        rest = (rest.removeprefix(gap) if self._fresh else rest).removesuffix(gap)
        if self._text is None:
            self._say(('"' if self._between else "") + dumps(rest)[1:-1] + '"')
        else:
            self._say(_written("".join(self._text) + rest, self._schema))
        self._between = ", "

    def _end_call(self) -> None:
        self._between = "" if self._started else "{"
        self._say("}")
        self._state = TagStream._head

    def _say(self, text: str) -> None:
        if not self._started:
            self._events.append(CallStart(self._name))
            self._started = self.begun = True
        self._events.append(CallText(self._between + text))
        self._between = ""

    def _break_off(self) -> bool:
        self._state = TagStream._lost
        return True


def _written(text: str, schema: Any) -> str:
    try:
        return dumps(typed(text, schema))
    except RecursionError:  # what could just be read may be just too deep to be written
        return dumps(text)


_FUNCTION: Final = r"<function=(?P<name>[^>\n]+)>(?P<body>.*?)(?:</function>|$)"
_PARAMETER: Final = r"<parameter=(?P<key>[^>\n]+)>(?P<value>.*?)</parameter>\s*(?=<parameter=|$)"
_CODER: Final = Tags("<tool_call>", "</tool_call>", _FUNCTION, _PARAMETER, value_gap="\n")
_SEED: Final = Tags("<seed:tool_call>", "</seed:tool_call>", _FUNCTION, _PARAMETER, value_gap="\n")
_MINIMAX: Final = Tags(
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    r"<invoke name=[\"']?(?P<name>[^>\"'\n]+)[\"']?>(?P<body>.*?)</invoke>",
    r"<parameter name=[\"']?(?P<key>[^>\"'\n]+)[\"']?>(?P<value>.*?)</parameter>\s*(?=<parameter name=|$)",
    value_gap="\n",
)
_GLM: Final = Tags(
    "<tool_call>",
    "</tool_call>",
    r"(?P<name>[\w.\-/]+)\s*(?P<body>(?:<arg_key>.*)?)\Z",
    r"<arg_key>(?P<key>[^<]*)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*(?=<arg_key>|$)",
)

_NAME: Final = r"(?P<name>[^>\n]{1,256}+)"


def _coder(block: str) -> TagForm:
    """Make the form of `<function=` and `<parameter=` within a block."""
    opener, closer = f"<{block}>", f"</{block}>"
    head = rf"(?:{opener})?+\s*+<function={_NAME}>\s*+(?=<parameter=|</function>|{closer})"
    key = re.compile(r"<parameter=(?P<key>[^>\n]{1,256}+)>")
    return TagForm(re.compile(head), "<parameter=", key, "</parameter>", "</function>", closer, gap="\n")


coder_form: Final = _coder("tool_call")
seed_form: Final = _coder("seed:tool_call")
minimax_form: Final = TagForm(
    re.compile(
        r"(?:<minimax:tool_call>)?+\s*+<invoke name=[\"']?+(?P<name>[^>\"'\n]{1,256}+)[\"']?+>\s*+"
        r"(?=<parameter name=|</invoke>)"
    ),
    "<parameter name=", re.compile(r"<parameter name=[\"']?+(?P<key>[^>\"'\n]{1,256}+)[\"']?+>"),
    "</parameter>", "</invoke>", "</minimax:tool_call>", gap="\n",
)  # fmt: skip
glm_form: Final = TagForm(
    re.compile(r"<tool_call>\s*+(?P<name>[\w.\-/]{1,256}+)\s*+(?=<arg_key>|</tool_call>)"),
    "<arg_key>", re.compile(r"<arg_key>(?P<key>[^<]{0,256}+)</arg_key>\s*+<arg_value>"),
    "</arg_value>", "</tool_call>", "</tool_call>",
)  # fmt: skip


def dsml_form(opener: str, closer: str) -> TagForm:
    """Make the form of DeepSeek's markup."""
    return TagForm(
        re.compile(
            rf'(?:{opener})?+\s*+<｜DSML｜invoke name="(?P<name>[^"\n]{{1,256}}+)"\s*+>\s*+'
            r"(?=<｜DSML｜parameter|</｜DSML｜invoke>)"
        ),
        "<｜DSML｜parameter",
        re.compile(r'<｜DSML｜parameter name="(?P<key>[^"\n]{1,256}+)"\s+string="(?P<string>true|false)"\s*+>'),
        "</｜DSML｜parameter>", "</｜DSML｜invoke>", closer,
    )  # fmt: skip


read_coder: Final[Read] = _CODER.read
read_seed: Final[Read] = _SEED.read
read_minimax: Final[Read] = _MINIMAX.read
read_glm: Final[Read] = _GLM.read


def dsml(opener: str, closer: str) -> Read:
    """Read DeepSeek's markup, in which each argument says whether it is a string."""
    return Tags(
        opener,
        closer,
        r"<｜DSML｜invoke name=\"(?P<name>[^\"\n]+)\"\s*>(?P<body>.*?)</｜DSML｜invoke>",
        r"<｜DSML｜parameter name=\"(?P<key>[^\"\n]+)\"\s+string=\"(?P<string>true|false)\"\s*>"
        r"(?P<value>.*?)</｜DSML｜parameter>\s*(?=<｜DSML｜parameter|$)",
    ).read
