# ruff: noqa: E501 - templates are easier to judge whole
"""Chat templates of rogue models: bounded by what they do themselves, on whatever thread they are rendered."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from tests.llm.processing import hostile_templates as hostile

from dynamo.llm import ChatTemplate
from dynamo.llm.processing.template_budget import LONGEST, MOST_STEPS, PER_MESSAGE, STEPS, Budget
from dynamo.runtime.errors import InvalidArgument

HELLO = [{"role": "user", "content": "Hello"}]
MEMORY = 96 << 20


def rendered(source: str) -> str | None:
    """The prompt, or None where the template is refused in a sentence."""
    try:
        return ChatTemplate(source).render(HELLO)
    except InvalidArgument as refusal:
        return None if len(refusal.message) < 1500 else refusal.message * 10_000


def cpu(source: str) -> float:
    begin = time.process_time()
    rendered(source)
    return time.process_time() - begin


def quick(source: str, bound: float) -> bool:
    """Tell whether it takes less; once more where it seems not to, since a busy machine slows computing down too."""
    return cpu(source) < bound or cpu(source) < bound


@pytest.fixture(scope="module")
def yardstick() -> float:
    """What a template may cost: some thousand calls of a macro, which nobody calls an attack."""
    source = "{% macro m() %}{% endmacro %}{% for i in range(5000) %}{{ m() }}{% endfor %}"
    return max(min(cpu(source) for _ in range(3)), 0.005)


@pytest.mark.parametrize("name", hostile.AT_RENDERING)
def test_what_a_template_does_is_bounded(name: str, yardstick: float) -> None:
    """In time, in memory and in the length of the prompt: refused in a sentence, or harmless."""
    source = hostile.AT_RENDERING[name]
    tracemalloc.start()
    try:
        shown = rendered(source)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    assert shown is None or len(shown) <= LONGEST + 100
    assert quick(source, 30 * yardstick)


@pytest.mark.parametrize("name", hostile.AT_COMPILING)
def test_what_compiling_does_is_bounded(name: str, yardstick: float) -> None:
    """Jinja computes constants when it compiles, and both it and Python descend into what is nested."""
    assert quick(hostile.AT_COMPILING[name], 100 * yardstick)


@pytest.mark.parametrize("name", hostile.OF_MUCH)
def test_what_a_large_chat_buys_is_bounded(name: str, yardstick: float) -> None:
    """130,000 messages bought 65 million steps, of which some took more time than they cost: 6 s."""
    template, many = ChatTemplate(hostile.OF_MUCH[name]), HELLO * 130_000
    begin = time.process_time()
    with pytest.raises(InvalidArgument, match="too many steps"):
        template.render(many)
    assert time.process_time() - begin < 200 * yardstick


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_large_chat_has_a_larger_budget(size: int) -> None:
    """Templates copy what they are given a few times, whatever its size."""
    source = (
        "{% for m in messages %}{% set c = m.content | trim %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}"
        "{% endif %}{{ '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>' ~ '\\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "a" * size}] * 3
    assert len(ChatTemplate(source).render(messages)) > 3 * size


def test_many_messages_and_tools() -> None:
    """Thousands of messages, each looked at in some ways, and hundreds of tools are an ordinary chat."""
    source = (
        "{% for t in tools %}{{ t | tojson(indent=4) }}{% for k, v in t.function.parameters.items() %}{{ k ~ v }}{% endfor %}{% endfor %}"
        "{% for m in messages %}{% if m.role == 'user' and (loop.first or loop.last or not loop.previtem.tool_calls) %}"
        "{{ m['role'] | capitalize }}: {{ m.content | trim | replace('a', 'b') | upper }}{% endif %}{% endfor %}"
    )
    tool: dict[str, Any] = {"function": {"parameters": {f"p{n}": {"type": "string"} for n in range(30)}}}
    ChatTemplate(source).render(HELLO * 5000, tools=[tool] * 300)


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ 1 + 2 }}{{ [1] + [2] }}{{ 'a' + 'b' + 'c' }}{{ (1, 2) + (3,) }}", "3[1, 2]abc(1, 2, 3)"),
        ("{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ 3 - 1 }}{{ 1 / 2 }}", "102433abab20.5"),
        ("{{ '%s-%d' % ('a', 5) }}{{ '{}-{x}'.format(1, x=2) }}{{ '%s' | format('b') }}", "a-51-2b"),
        ("{{ [3, 1] | sort | join(', ') }}{{ [1, 1] | unique | list }}{{ [1, 2] | sum }}", "1, 3[1]3"),
        ("{{ 'a\\nb' | indent(2) }}|{{ 'a\\n\\nb' | indent(2, true) }}", "a\n  b|  a\n\n  b"),
        ("{{ [{'a': 1}, {'a': 2}] | map(attribute='a') | list }}{{ [1, 2] | select('odd') | list }}", "[1, 2][1]"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages[-1:] | length }}", "11"),
        ("{{ 'abc'[1:] }}{{ 'abc'[::-1] }}{{ 'a,b'.split(',') }}{{ 'x'.join(['a', 'b']) }}", "bccba['a', 'b']axb"),
        (
            "{{ {'a': 1}.get('a') }}{{ {'a': 1} | items | list }}{{ {'b': 1, 'a': 2} | dictsort }}",
            "1[('a', 1)][('a', 2), ('b', 1)]",
        ),
        ("{{ 'a' in 'abc' }}{{ 1 in [1] }}{{ 'x' not in messages[0] }}{{ 1 < 2 <= 2 }}", "TrueTrueTrueTrue"),
        ("{{ none }}{{ 1.5 }}{{ true }}{{ missing }}{{ {'a': [1, 'b']} }}", "None1.5True{'a': [1, 'b']}"),
        ("{% for a in [1, 2, 3] if a != 2 %}{{ loop.index }}{{ a }}{% else %}no{% endfor %}", "1123"),
        ("{% for a in [1, [2]] recursive %}{{ loop(a) if a is sequence else a }}{% endfor %}", "12"),
        ("{% set x %}{{ 'a' }}b{% endset %}{{ x | upper }}{% filter upper %}c{% endfilter %}", "ABC"),
        (
            "{{ '<a>' | e }}{{ '<a>' | safe }}{{ 'a b' | title }}{{ 'abc' | truncate(2, true, '', 0) }}",
            "&lt;a&gt;<a>A Bab",
        ),
        ("{{ '5' | int + 1 }}{{ 'x' | default('y') }}{{ missing | default('y') }}{{ [1] | first }}", "6xy1"),
        ("{{ 5 is odd }}{{ 4 is even }}{{ 'a' is lower }}{{ 9 is divisibleby(3) }}{{ 'a' is in 'ab' }}", "True" * 5),
    ],
)
def test_what_templates_do_is_as_it_was(source: str, shown: str) -> None:
    """Counting changes nothing that is printed."""
    assert ChatTemplate(source).render(HELLO) == shown


def test_the_budget_comes_with_the_chat() -> None:
    """A message and a character of a request buy steps, and nothing else does."""
    assert Budget().left == STEPS
    assert Budget(0, 3).left == STEPS + 3 * PER_MESSAGE
    assert Budget(4 << 20, 130_000, [{}] * 10_000).left == MOST_STEPS
    budget = Budget()
    budget.spend(STEPS)
    with pytest.raises(InvalidArgument, match="too many steps"):
        budget.spend()
