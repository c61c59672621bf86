"""Chat messages to one prompt text, by the model's own Jinja template, in a sandbox.

Templates come with model files, so they run without access to anything: an immutable
sandbox, with the functions that the templates of Hugging Face models expect. What they do is counted, so that no
template takes a frontend's time or memory (`template_budget.py`). Compiled once per model; rendered once per request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from dynamo.llm.processing.image_prompts import ImageMark, is_image
from dynamo.llm.processing.template_budget import Budget
from dynamo.llm.processing.tool_prompt import as_text, with_tools
from dynamo.runtime.errors import InvalidArgument

if TYPE_CHECKING:
    from jinja2 import Template

    from dynamo.llm.processing.template_sandbox import CountedContext, CountedEnvironment

DEFAULT_TEMPLATE: Final = (
    "{{ bos_token | default('') }}"
    "{% for message in messages %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] | trim }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For base models, which bring none."""
SWITCHED_TEMPLATE: Final = DEFAULT_TEMPLATE.replace(
    "Assistant:",
    "Assistant:{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}",
)
"""For models of bytes, which have no weights: thinking is switched off as in Qwen3's template."""

LONGEST_SOURCE: Final = 1 << 16
"""Characters of all templates of a model together; the longest known one has 20,000."""
MOST_VALUES: Final = 1 << 18
"""Values in the arguments of one call, or what may divide some: parsing more holds the interpreter for long."""
MOST_TEMPLATES: Final = 32
_LONGEST_REFUSAL: Final = 1000
_NONE: Final = re.compile(r"content['\"\]]*\s+is\s+(?:not\s+)?none", re.IGNORECASE)
"""A template that tells a message with calls from one with text by its content being null."""
_REASONING: Final = "reasoning_content"
_SHORT_REASONING: Final = "reasoning"
"""vLLM's name for it, in answers that clients send back."""
_THOUGHTS: Final = ("thinking", "redacted_thinking", "reasoning")
"""Parts of an assistant's content that templates get as its reasoning."""
_TOOL: Final = "tool"
"""A template with this word has a way of its own with tools; others are given them as text (`tool_prompt.py`)."""
_PARTS: Final = re.compile(r"""['"]image(?:_url)?['"]""")
"""A template that reads the parts of a content by itself, images among them."""
_TEXTS: Final = re.compile(r"is\s+(?:not\s+)?string")
"""One that takes contents of text, too."""
TOOL_USE: Final = "tool_use"
"""The named template that is taken where the request has tools."""


class Arguments(dict[str, Any]):
    """A call's arguments as templates of every family take them: an object, which is JSON where text is meant.

    Most templates iterate it or print it with `tojson`; DeepSeek's V3 and R1 put it between two texts, and would print
    Python's words for it.
    """

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __radd__(self, before: str) -> str:
        return before + str(self)

    def __add__(self, after: str) -> str:
        return str(self) + after


class ChatTemplate:
    """One model's template(s), ready to render."""

    def __init__(
        self,
        source: str | None = None,
        *,
        named: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
        plain: str = DEFAULT_TEMPLATE,
    ) -> None:
        """Compile the templates; `plain` stands in where there is no `source`."""
        sources = [source or "", *(named or {}).values()]
        if len(sources) > MOST_TEMPLATES or sum(map(len, sources)) > LONGEST_SOURCE:
            raise InvalidArgument(
                f"the model has {len(sources)} chat templates of {sum(map(len, sources))} characters together: at most "
                f"{MOST_TEMPLATES} of {LONGEST_SOURCE} are read"
            )
        self.source = source
        """The model's own; None where it has none, or several by name."""
        environment = _environment()
        self._special = dict(special_tokens or {})
        self._default = _compile(environment, source if source is not None else plain)
        self._named = {name: _compile(environment, text) for name, text in (named or {}).items()}
        self._asks_for_none = any(map(_NONE.search, sources))
        self._knows_tools = self._asks_for_none or any(_TOOL in text for text in sources)
        self._takes_parts = any(map(_PARTS.search, sources))
        self._takes_texts = not self._takes_parts or any(map(_TEXTS.search, sources))

    def render(
        self,
        messages: Sequence[Any],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        mark: ImageMark | None = None,
    ) -> str:
        """Return the prompt; a refusal of the template becomes `InvalidArgument` with its sentence.

        `mark`: what stands for an image; None: the messages have none.
        """
        template = self._named.get(TOOL_USE, self._default) if tools else self._default
        said = [self._message(message, index, mark) for index, message in enumerate(messages)]
        if tools and not self._knows_tools:
            said = with_tools(said, tools)
        if not self._takes_texts:
            said = [_as_parts(message) for message in said]
        names = {
            **self._special,
            **(variables or {}),
            "messages": said,
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        context: CountedContext = template.new_context(names)  # type: ignore[assignment] # as its environment makes them
        context.budget = Budget(_size(names["messages"]), len(messages), tools or ())
        try:
            return context.budget.printed(template.root_render_func(context))
        except InvalidArgument:
            raise
        except Exception as error:
            # Its own refusal, or what it does to values of the wrong shape, or to the interpreter; no fault of ours.
            did = "refused" if _is_refusal(error) else "failed on"
            raise InvalidArgument(f"the model's chat template {did} the messages: {_short(error)}") from error

    def _message(self, message: Any, index: int, mark: ImageMark | None) -> dict[str, Any]:
        """Return a message as templates want it, with a missing content as nothing at all where the template looks."""
        flat = flatten_message(message, index, mark)
        if mark is not None and self._takes_parts and (self._knows_tools or flat.get("role") != "tool"):
            flat["content"] = _parts(message.get("content"), flat["content"], index, mark)
        if not self._knows_tools and ("tool_calls" in flat or flat.get("role") == "tool"):
            return as_text(flat)
        if self._asks_for_none and flat.get("tool_calls") and message.get("content") is None:
            flat["content"] = None
        return flat


def continued(prompt: str, messages: Sequence[Any]) -> str:
    """Return a prompt that ends with the text of the last message, which the answer goes on with."""
    text = flatten_message(messages[-1], len(messages) - 1)["content"].strip()
    at = prompt.rfind(text)
    if not text or at < 0:
        raise InvalidArgument("continue_final_message: the prompt doesn't have the last message's text as it is")
    return prompt[: at + len(text)]


def _parts(content: Any, text: str, index: int, mark: ImageMark) -> Any:
    """Return a content for a template that reads parts, where images are among them; `text` is the same, flattened."""
    if not isinstance(content, list) or not any(map(is_image, content)):
        return text
    return [
        mark.part() if is_image(part) else {"type": "text", "text": _part_text(part, index, number)}
        for number, part in enumerate(content)
    ]


def _as_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message for a template that reads nothing but parts."""
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def flatten_message(message: Any, index: int, mark: ImageMark | None = None) -> dict[str, Any]:
    """Return the message as templates expect it: content one text, tool arguments objects."""
    if type(message) is not dict and not isinstance(message, Mapping):
        raise InvalidArgument(f"messages[{index}] must be an object")
    content = message.get("content")
    flat = {**message, "content": flatten_content(content, index, mark)}
    if message.get("role") == "assistant" and _REASONING not in message:
        if isinstance(thought := message.get(_SHORT_REASONING), str):
            flat[_REASONING] = thought
        elif isinstance(content, list):
            flat |= _reasoning(content)
    if isinstance(flat.get("tool_calls"), list):
        flat["tool_calls"] = [_parsed_call(call) for call in flat["tool_calls"]]
    return flat


def flatten_content(content: Any, index: int, mark: ImageMark | None = None) -> str:
    """Join the text parts of a message's content; `mark` is the text of an image."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidArgument(f"messages[{index}].content must be a string or a list of parts")
    return "\n".join(
        _part_text(part, index, number, mark) for number, part in enumerate(content) if not _is_thought(part)
    )


def _is_thought(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _THOUGHTS


def _reasoning(content: list[Any]) -> dict[str, str]:
    thought = "\n".join(filter(None, map(_thought, content)))
    return {_REASONING: thought} if thought else {}


def _thought(part: Any) -> str:
    """Return what a part says of an assistant's reasoning."""
    if not _is_thought(part):
        return ""
    text = part.get("thinking", part.get("text"))
    return text if isinstance(text, str) else ""


def _part_text(part: Any, index: int, number: int, mark: ImageMark | None = None) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind == "text" else part.get("refusal") if kind == "refusal" else None
    if isinstance(text, str):
        return text
    if mark is not None and is_image(part):
        return mark.text
    where = f"messages[{index}].content[{number}]"
    if kind in (None, "text", "refusal"):
        raise InvalidArgument(f"{where} must be an object with type 'text' and a string text")
    raise InvalidArgument(f"{where} has type {kind!r}: this model takes text parts only")


def _parsed_call(call: Any) -> Any:
    """Parse tool arguments: they travel as a JSON string, and templates print them as an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    text = function["arguments"]
    if len(text) > MOST_VALUES and sum(map(text.count, ",[{")) > MOST_VALUES:
        raise InvalidArgument(f"tool_calls: the arguments of a call have more than {MOST_VALUES} values: send fewer")
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return call
    known = Arguments(arguments) if isinstance(arguments, dict) else arguments
    return {**call, "function": {**function, "arguments": known}}


def _size(messages: Sequence[Mapping[str, Any]]) -> int:
    """Count the characters of a chat's texts."""
    return sum(_content_size(message.get("content")) for message in messages)


def _content_size(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    return sum(len(part.get("text", "")) for part in content) if isinstance(content, list) else 0


def _short(error: Exception) -> str:
    """Cut what a template, or Python, says of an error to what one reads."""
    return (str(error) or type(error).__name__)[:_LONGEST_REFUSAL]


def _is_refusal(error: Exception) -> bool:
    """Tell whether a template refused what it was given; Jinja is loaded where one was rendered."""
    from jinja2.exceptions import TemplateError

    return isinstance(error, TemplateError)


def _compile(environment: CountedEnvironment, source: str) -> Template:
    from jinja2.exceptions import TemplateSyntaxError

    try:
        template = environment.from_string(source)
        # Jinja looks names up in a ChainMap otherwise, which is half of the time that rendering takes.
        template.globals = dict(template.globals)
        return template
    except TemplateSyntaxError as error:
        message = (error.message or "")[:_LONGEST_REFUSAL]
        raise InvalidArgument(f"the chat template has an error in line {error.lineno}: {message}") from error
    except Exception as error:  # of Python's compiler: too deep, too many blocks, too long a number
        raise InvalidArgument(f"the chat template can't be compiled: {_short(error)}") from error


def _environment() -> CountedEnvironment:
    # Jinja takes 0.1 s to import: only processes that render pay for it.
    from dynamo.llm.processing.template_compiler import GenerationTag
    from dynamo.llm.processing.template_sandbox import CountedEnvironment, filters, strftime_layout, tests

    def strftime_now(layout: str) -> str:
        return datetime.now().astimezone().strftime(strftime_layout(layout))

    environment = CountedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
    )
    environment.filters, environment.tests = filters(), tests()  # type: ignore[assignment] # callables, which Jinja calls functions
    environment.globals.pop("lipsum")
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    from jinja2.exceptions import TemplateError

    raise TemplateError(message[:_LONGEST_REFUSAL] if isinstance(message, str) else type(message).__name__)
