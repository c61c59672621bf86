"""Target `templates`: hostile chat templates over plain messages, and hostile messages through common templates."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from random import Random
from typing import Any, Final

from dynamo.llm.processing.chat_template import ChatTemplate
from dynamo.runtime.errors import DynamoException

_PLAIN: Final = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
_TOOLS: Final = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
_DOUBLING: Final = (
    "{% set ns = namespace(s='a') %}{% for i in range(N) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}"
)
SOURCES: Final[dict[str, str]] = {
    "doublings by ~": _DOUBLING.replace("N", "31"),
    "doublings by +": _DOUBLING.replace("N", "31").replace("~", "+"),
    "doubled lists": "{% set ns = namespace(s=[1]) %}{% for i in range(28) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "a text times a milliard": "{{ 'a' * 1000000000 }}",
    "a list times a milliard": "{{ ([1] * 1000000000)|length }}",
    "loops in loops": "{% for a in range(3000) %}{% for b in range(3000) %}x{% endfor %}{% endfor %}",
    "loops of the largest ranges": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a long power": "{{ (10 ** 1000000)|string|length }}",
    "a shift": "{{ 1 * 2 ** 100000000 }}",
    "padding": "{{ '%1000000000d' % 1 }}",
    "padding by format": "{{ '{:>1000000000}'.format(1) }}",
    "padding by a method": "{{ 'a'.ljust(1000000000) }}",
    "padding by a filter": "{{ 'a'|center(1000000000) }}",
    "an indented text": "{{ ('a\n' * 100000)|indent(100000) }}",
    "a joined text": "{{ range(99999)|join('a' * 99999) }}",
    "a replaced text": "{{ ('a' * 99999)|replace('a', 'b' * 99999) }}",
    "words wrapped": "{{ ('a ' * 999999)|wordwrap(1) }}",
    "a macro of itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "two macros": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "recursive loops": "{% for a in [[[[]]]] recursive %}{{ loop([[a]]) }}{% endfor %}",
    "a lipsum": "{{ lipsum(n=100000) }}",
    "a batch": "{{ range(99999)|batch(1, 'a' * 9999)|list|length }}",
    "a slice": "{{ range(9)|slice(100000000)|list|length }}",
    "a sorted product": "{{ (range(99999)|list * 99)|sort|length }}",
    "json of much": "{{ (range(99999)|list * 300)|tojson|length }}",
    "json with an indent": "{{ [[[[1]]]]|tojson(indent=100000000) }}",
    "a refusal of a long text": "{{ raise_exception('a' * 10000000) }}",
    "a date of a long form": "{{ strftime_now('%Y' * 1000000)|length }}",
    "escapes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "escapes by a filter": "{{ ''|attr('__class__') }}",
    "escapes by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "escapes by map": "{{ ['']|map(attribute='__class__')|list }}",
    "globals": "{{ cycler.__init__.__globals__ }}",
    "an import": "{% import 'x' as y %}",
    "an include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'x' %}",
    "a changed message": "{% set _ = messages.append(1) %}",
    "brackets in brackets": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "lists in lists": "{{ " + "[" * 300 + "]" * 300 + " }}",
    "many ifs": "{% if 1 %}" * 5_000 + "{% endif %}" * 5_000,
    "a megabyte of expressions": "{{ a }}" * 150_000,
    "a long literal": "{{ '" + "a" * 3_000_000 + "' }}",
    "a chain of filters": "{{ 'a'" + "|upper" * 5_000 + " }}",
    "a body of many names": "{% for i in range(50000) %}{% set x = [" + "i.a, " * 2000 + "1] %}{% endfor %}",
    "an attribute of many parts": "{{ range(9000)|map(attribute='" + "a." * 9000 + "a', default=1)|list|length }}",
    "stripping many characters": "{{ ('\u0101' * 100000).strip('\u0102' * 100000 ~ '\u0101')|length }}",
    "looking from the end": "{{ ('a' * 2000000).rfind('b' ~ 'a' * 20000) }}",
    "a number of many digits": "{% set a = ('f' * 4000000)|int(0, 16) %}"
    "{% for i in range(50000) %}{% set x = -a %}{% endfor %}",
    "a division by nothing": "{{ 1 // 0 }}",
    "surrogates": "{{ '\ud800' }}",
    "a generation tag": "{% generation %}" * 500 + "{% endgeneration %}" * 500,
    "a loop that goes on": "{% for m in messages %}{% continue %}{% endfor %}{% break %}",
    "a long sum": _DOUBLING.replace("N", "99999").replace("ns.s ~ ns.s", "ns.s ~ 'aaaaaaaaaaa'"),
}
WITH_MUCH: Final[dict[str, str]] = {
    "mapped characters": "{{ ((messages ~ loop)|map('string'))|map('string')|join('aa') }}",
    "selected characters": "{{ (messages ~ loop)|select('string')|select('string')|list|length }}",
    "names for each": "{% for m in messages %}{% set x = [" + "m.a, " * 500 + "1] %}{% endfor %}",
    "loops for each": "{% for m in messages %}{% for i in range(200) %}{% endfor %}{% endfor %}",
}
"""Templates that do what a large chat lets them do."""
USUAL: Final[dict[str, str]] = {
    "default": "",
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content|trim }}<|im_end|>\n{% endfor %}",
    "tools": "{{ tools|tojson(indent=4) }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments|tojson }}{% for k, v in c.function.arguments|items %}{{ k }}={{ v }}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "split": "{% for m in messages %}{{ m.content.split('</think>')[-1].strip('\n') }}{% endfor %}",
    "none": "{% for m in messages %}{% if m.content is not none %}{{ m.content }}{% endif %}{% endfor %}",
    "words": "{% for m in messages %}{{ m.content.split()|join(' ') }}{{ m.content|replace('a', 'b') }}{% endfor %}",
}


def rendered(source: str, messages: Any, **more: Any) -> None:
    """Compile and render, as a frontend does for each request."""
    template = ChatTemplate(source or None, special_tokens={"bos_token": "<s>"})
    try:
        template.render(messages, tools=_TOOLS, **more)
    except DynamoException as refusal:
        if len(str(refusal)) > 20_000:
            raise AssertionError(f"a refusal of {len(str(refusal))} characters") from None
        raise


def _call(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*_PLAIN, {"role": "assistant", "content": None, "tool_calls": [call]}]


def _deep(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


MESSAGES: Final[dict[str, Callable[[], Any]]] = {
    "4 MB of text": lambda: [{"role": "user", "content": "a " * 1_900_000}],
    "130,000 messages": lambda: [{"role": "user", "content": "a"}] * 130_000,
    "arguments of 4 MB": lambda: _call("[" + "[]," * 1_000_000 + "[]]"),
    "arguments that are deep": lambda: _call("[" * 900 + "]" * 900),
    "arguments that are too deep": lambda: _call("[" * 500_000 + "]" * 500_000),
    "arguments of a long number": lambda: _call('{"a": ' + "9" * 1_000_000 + "}"),
    "arguments of many keys": lambda: _call(json.dumps({f"k{number}": number for number in range(200_000)})),
    "parts": lambda: [{"role": "user", "content": [{"type": "text", "text": "a"}] * 130_000}],
    "roles that are no texts": lambda: [{"role": {"a": [1]}, "content": "a"}, {"role": None, "content": "b"}],
    "calls that are none": lambda: [
        {"role": "assistant", "tool_calls": [1, None, "a", {"function": 1}, {"function": {}}]}
    ],
    "a surrogate": lambda: [{"role": "user", "content": "\ud800"}],
    "deep content": lambda: [{"role": "user", "content": "a", "extra": _deep(900)}],
}


def corpus() -> dict[str, Callable[[], object]]:
    """Each of these with what is usual otherwise."""
    results: dict[str, Callable[[], object]] = {
        name: functools.partial(rendered, source, _PLAIN) for name, source in SOURCES.items()
    }
    for usual, source in USUAL.items():
        for name, make in MESSAGES.items():
            results[f"{usual}: {name}"] = functools.partial(_made, source, make)
    for name, source in WITH_MUCH.items():
        results[f"{name} of 130,000 messages"] = functools.partial(_made, source, MESSAGES["130,000 messages"])
    return results


def _made(source: str, make: Callable[[], Any]) -> None:
    rendered(source, make())


_ATOMS: Final = (
    "messages",
    "'a'",
    "1",
    "9999",
    "range(999)",
    "ns.s",
    "'a' * 9999",
    "tools",
    "none",
    "[1]",
    "{'a': 1}",
    "loop",
    "m",
)
_FILTERS: Final = (
    "length",
    "join('aa')",
    "tojson",
    "string",
    "list",
    "sort",
    "reverse",
    "upper",
    "trim",
    "indent(999)",
    "center(9999)",
    "replace('a', 'aaaa')",
    "batch(2)",
    "first",
    "last",
    "sum",
    "map('string')",
    "items",
    "unique",
    "groupby('role')",
    "wordwrap(2)",
    "urlize",
    "xmlattr",
    "pprint",
    "escape",
    "format(1)",
    "attr('x')",
    "select",
    "slice(999)",
)
_OPERATORS: Final = ("+", "~", "*", "**", "%", "//", "-", "in", "and", "==", "is", "<")


def case(random: Random) -> tuple[str, Callable[[], object]]:
    """A template put together at random."""
    source = "{% set ns = namespace(s='ab') %}" + "".join(
        _statement(random, 0) for _ in range(random.choice((1, 2, 5)))
    )
    messages = random.choice((lambda: _PLAIN, *MESSAGES.values()))
    return source[:100], functools.partial(_made, source, messages)


def _statement(random: Random, depth: int) -> str:
    inner = "" if depth > 3 else "".join(_statement(random, depth + 1) for _ in range(random.choice((0, 1, 2))))
    expression = _expression(random, 0)
    return random.choice(
        (
            f"{{{{ {expression} }}}}",
            f"{{% set ns.s = {expression} %}}",
            f"{{% set ns.s = ns.s ~ {expression} %}}",
            f"{{% for m in {expression} %}}{inner}{{% endfor %}}",
            f"{{% for m in range(99) %}}{inner}{{% endfor %}}",
            f"{{% if {expression} %}}{inner}{{% else %}}{inner}{{% endif %}}",
            f"{{% filter upper %}}{inner}{{% endfilter %}}",
        )
    )


def _expression(random: Random, depth: int) -> str:
    if depth > 3 or random.random() < 0.3:
        return random.choice(_ATOMS)
    left = _expression(random, depth + 1)
    if random.random() < 0.6:
        return f"({left})|{random.choice(_FILTERS)}"
    return f"({left}) {random.choice(_OPERATORS)} ({_expression(random, depth + 1)})"
