# ruff: noqa: E501 - templates are easier to judge whole
"""Chat templates that a rogue worker might serve: each takes all time or memory that it is given. Plain data."""

from __future__ import annotations

from typing import Final

_DOUBLE_SET: Final = (
    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = %s %}{% endfor %}{{ ns.x | length }}"
)
_DEEP: Final = "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = %s %}{% endfor %}"


def _double(expression: str) -> str:
    return _DOUBLE_SET.replace("%s", expression)


def _nested(expression: str, then: str) -> str:
    return _DEEP.replace("%s", expression) + then


AT_RENDERING: Final[dict[str, str]] = {
    # Texts that double.
    "doubling by ~": _double("ns.x ~ ns.x"),
    "doubling by +": _double("ns.x + ns.x"),
    "doubling by *": _double("ns.x * 2"),
    "doubling by 2 *": _double("2 * ns.x"),
    "doubling by join": _double("[ns.x, ns.x] | join"),
    "doubling by a method join": _double("ns.x.join([ns.x, ns.x, 'a'])"),
    "doubling by replace": _double("ns.x | replace('a', 'aa') | replace('b', 'bb')"),
    "doubling by a method replace": _double("ns.x.replace('', 'ab')"),
    "doubling by a method replace, count": _double("ns.x.replace('a', 'aab', 100000000)"),
    "doubling by %": _double("'%s%s' % (ns.x, ns.x)"),
    "doubling by % of names": _double("'%(a)s%(a)s' % {'a': ns.x}"),
    "doubling by the filter format": _double("'%s%s' | format(ns.x, ns.x)"),
    "doubling by format": _double("'{0}{0}'.format(ns.x)"),
    "doubling by format_map": _double("'{a}{a}'.format_map({'a': ns.x})"),
    "doubling by tojson": _double("ns.x | tojson | tojson"),
    "doubling by tojson of a list": _double("[ns.x, ns.x] | tojson"),
    "doubling by string": _double("[ns.x, ns.x] | string"),
    "doubling by escape": _double("(ns.x ~ '<') | escape"),
    "doubling by urlencode": _double("(ns.x ~ '%') | urlencode"),
    "doubling by slices": _double("ns.x[:] + ns.x[::-1]"),
    "doubling by a list": _double("(ns.x | list) + (ns.x | list)"),
    "doubling by sum": _double("[ns.x | list, ns.x | list] | sum(start=[])"),
    "doubling by a set block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% set ns.x = y %}{% endfor %}",
    "doubling by a macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
    "{% set ns.x = m(ns.x) %}{% endfor %}",
    "doubling by a filter block": "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set y %}{% filter upper %}"
    "{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x = y %}{% endfor %}",
    "a long text in a long set block": "{% set a = 'a' * 1000000 %}{% set b %}{% for i in range(100000) %}{{ a }}{% endfor %}{% endset %}",
    "a long text again and again": "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{{ a }}{% endfor %}",
    # One step that is huge.
    "a text times a number": "{{ 'a' * 10 ** 10 }}",
    "a number times a text": "{{ 10000000000 * 'a' }}",
    "a list times a number": "{{ ([1] * 10 ** 9) | length }}",
    "center": "{{ 'a' | center(1000000000) }}",
    "a method center": "{{ 'a'.center(1000000000) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "rjust": "{{ 'a'.rjust(1000000000) }}",
    "zfill": "{{ 'a'.zfill(1000000000) }}",
    "expandtabs": "{{ '\\t'.expandtabs(1000000000) }}",
    "a wide %": "{{ '%1000000000d' % 1 }}",
    "a wide % by a star": "{{ '%*d' % (1000000000, 1) }}",
    "a precise %": "{{ '%.1000000000f' % 1 }}",
    "a wide format": "{{ '{:>1000000000}'.format(1) }}",
    "a wide format within": "{{ '{:{}}'.format(1, 1000000000) }}",
    "a wide filter format": "{{ '%1000000000d' | format(1) }}",
    "odd of a text": "{{ '%1000000000d' is odd }}",
    "even of a text": "{{ '%1000000000d' is even }}",
    "divisibleby of a text": "{{ '%1000000000d' is divisibleby(3) }}",
    "indent": "{{ 'a\\nb' | indent(1000000000) }}",
    "indent by a text": "{{ ('\\n' * 100000) | indent('a' * 100000) }}",
    "wordwrap": "{{ ('a ' * 100000) | wordwrap(1, wrapstring='a' * 100000) }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list | length }}",
    "slice": "{{ [1] | slice(1000000000) | list | length }}",
    "round": "{{ 1 | round(1000000000) }}",
    "tojson, indented": "{{ [1] | tojson(indent=1000000000) }}",
    "tojson, separated": "{{ ([1] * 50000) | tojson(separators=('a' * 100000, ':')) }}",
    "a power": "{{ 9 ** 9 ** 9 }}",
    "a power of a power": "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x % 7 }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') | length }}",
    "a date": "{{ strftime_now('%c' * 1000000) }}",
    "a long refusal": "{{ raise_exception('a' * 4000000) }}",
    "lorem ipsum": "{{ lipsum(n=100000) }}",
    # Loops without output.
    "loops in loops": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "a filtered loop": "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}",
    "a loop over a text": "{% for a in 'a' * 100000 %}{% for b in 'a' * 100000 %}{% endfor %}{% endfor %}",
    "a loop that breaks": "{% for a in range(100000) %}{% for b in range(100000) %}{% break %}{% endfor %}{% endfor %}",
    "macros that call themselves twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "a macro without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loops": "{% for a in [1, 1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "call blocks": "{% macro f(n) %}{{ caller(n) }}{{ caller(n) }}{% endmacro %}{% macro g(n) %}{% if n %}{% call(m) f(n) %}"
    "{{ g(m - 1) }}{% endcall %}{% endif %}{% endmacro %}{{ g(60) }}",
    "sorting": "{% for a in range(100000) %}{% set x = range(100000) | sort %}{% endfor %}",
    "lists of loops": "{% for a in range(100000) %}{% set x = range(100000) | list | length %}{% endfor %}",
    "selecting": "{% for a in range(100000) %}{% set x = range(100000) | select('==', -1) | list %}{% endfor %}",
    "selecting from what is selected": "{% set ns = namespace(x=range(100000)) %}{% for i in range(500) %}{% set ns.x = ns.x | select %}"
    "{% endfor %}{{ ns.x | list | length }}",
    "searching": "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "counting": "{% set a = 'a' * 4000000 %}{% for i in range(100000) %}{% set x = a.count('b') %}{% endfor %}",
    "trimming": "{% set a = ' ' * 4000000 %}{% for i in range(100000) %}{% set x = a | trim %}{% endfor %}",
    "comparing long texts": "{% set a = 'a' * 500000 %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}{% for i in range(100000) %}"
    "{% if b == c %}{% endif %}{% endfor %}",
    "a sum of long texts": "{% set a = 'a' * 2000000 %}{% set b = " + "a + " * 5000 + "a %}",
    "hashing in a dictionary of pairs": _nested("(ns.x, ns.x)", "{{ dict([(ns.x, 1)]) }}{{ namespace([(ns.x, 1)]) }}"),
    "searching long texts": "{% set a = 'a' * 1000000 %}{% for i in range(100000) %}{% if 'b' in a %}{% endif %}{% endfor %}",
    "comparing": "{% set a = 'a' * 4000000 %}{% set b = a ~ 'b' %}{% set c = a ~ 'c' %}{% for i in range(100000) %}{% if b == c %}"
    "{% endif %}{% endfor %}",
    "splitting": "{% set a = 'a ' * 1000000 %}{% for i in range(100000) %}{% set x = a.split(' ') %}{% endfor %}",
    "searching a list": "{% set a = range(100000) | list %}{% for i in range(100000) %}{% if -1 in a %}{% endif %}{% endfor %}",
    "a list's index": "{% set a = range(90000) | list %}{% for i in range(100000) %}{% set x = a.count(-1) %}{% endfor %}",
    "mapping what is mapped": "{{ ('a' * 900000) | map('string') | map('string') | join('aa') }}",
    "a body of many loop variables": "{% for i in range(50000) %}{% set x = [" + "loop.previtem, loop.first, " * 900 + "1] %}{% endfor %}",
    "a body of many names that aren't there": "{% for i in range(50000) %}{% set x = [" + "i.a, " * 2000 + "1] %}{% endfor %}",
    "a condition of many names": "{% for i in range(50000) if [" + "i.a, " * 2000 + "1] %}{% endfor %}",
    "a body of many tests": "{% for i in range(50000) %}{% set x = [" + "i is mapping, " * 2000 + "1] %}{% endfor %}",
    "a body of many filters": "{% for i in range(50000) %}{% if 0 " + " | d(0)" * 90 + " %}{% endif %}{% endfor %}",
    "a macro of many names": "{% macro f(n) %}{% set x = [" + "n.a, " * 2000 + "1] %}{% endmacro %}{% for i in range(9000) %}{{ f(i) }}{% endfor %}",
    "an attribute of many parts": "{{ range(9000) | map(attribute='" + "a." * 9000 + "a', default=1) | list | length }}",
    "a sum of an attribute of many parts": "{{ range(9000) | map('d') | list | sort(attribute='" + "real," * 5000 + "real') | length }}",
    "groups by many parts": "{{ range(9000) | groupby('" + "a." * 9000 + "a', default=1) | length }}",
    "selected by many parts": "{{ range(9000) | selectattr('" + "real." * 5000 + "real') | list | length }}",
    "stripping many characters": "{{ ('\u0101' * 100000).strip('\u0102' * 100000 ~ '\u0101') | length }}",
    "trimming many characters": "{{ ('\u0101' * 100000) | trim('\u0102' * 100000 ~ '\u0101') | length }}",
    "looking for a long text from the end": "{{ ('a' * 2000000).rfind('b' ~ 'a' * 20000) }}",
    "splitting at a long text from the end": "{{ ('a' * 2000000).rsplit('b' ~ 'a' * 20000) | length }}",
    "parting at a long text from the end": "{{ ('a' * 2000000).rpartition('b' ~ 'a' * 20000) | length }}",
    "beginnings without end": "{% set t = ('b',) * 9000 %}{% for i in range(50000) %}{% if 'abc'.startswith(t) %}{% endif %}{% endfor %}",
    "powers": "{% for i in range(50000) %}{% set x = 3 ** 30000 %}{% endfor %}",
    "a number of many digits": "{% set a = ('f' * 4000000) | int(0, 16) %}{% for i in range(50000) %}{% set x = -a %}{% endfor %}",
    "divisions of long numbers": "{% set a = 2 ** 2000 + 1 %}{% set b = 2 ** 1000 + 7 %}{% for i in range(50000) %}{% set x = a // b %}{% endfor %}",
    # Values that hold themselves many times over.
    "printing what is nested": _nested("[ns.x, ns.x]", "{{ ns.x }}"),
    "printing tuples": _nested("(ns.x, ns.x)", "{{ ns.x }}"),
    "printing dictionaries": _nested("{'a': ns.x, 'b': ns.x}", "{{ ns.x }}"),
    "printing views": _nested("{'a': ns.x, 'b': ns.x}", "{{ ns.x.items() }}{{ ns.x.values() }}"),
    "printing a namespace": _nested("[ns.x, ns.x]", "{{ ns }}"),
    "joining what is nested": _nested("[ns.x, ns.x]", "{{ ns.x ~ '' }}"),
    "formatting what is nested": _nested("[ns.x, ns.x]", "{{ '%s' % ns.x }}"),
    "formatting a namespace": _nested("[ns.x, ns.x]", "{{ '%s' % ns }}{{ '{}'.format(ns) }}"),
    "% of a namespace in a tuple": _nested("[ns.x, ns.x]", "{{ '%s' % (ns,) }}"),
    "% of views": _nested("{'a': ns.x, 'b': ns.x}", "{{ '%s' % (ns.x.values(),) }}"),
    "text + what is nested": _nested("[ns.x, ns.x]", "{{ '' ~ ns.x | string }}"),
    "writing what is nested": _nested("[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "writing what was batched": _nested("(ns.x + ns.x) | batch(100) | list", "{{ ns.x | tojson }}"),
    "comparing what is nested": _nested("[ns.x, ns.x]", "{% set a = ns.x %}")
    + _nested("[ns.x, ns.x]", "{{ ns.x == a }}{{ ns.x < a }}"),
    "comparing by a test": _nested("[ns.x, ns.x]", "{% set a = ns.x %}") + _nested("[ns.x, ns.x]", "{{ ns.x is eq(a) }}"),
    "finding what is nested": _nested("[ns.x, ns.x]", "{% set a = ns.x %}") + _nested("[ns.x, ns.x]", "{{ a in [ns.x] }}"),
    "hashing what is nested": _nested("(ns.x, ns.x)", "{{ {ns.x: 1} }}"),
    "looking up what is nested": _nested("(ns.x, ns.x)", "{{ {}[ns.x] }}{{ {}.get(ns.x) }}"),
    "finding it in a dictionary": _nested("(ns.x, ns.x)", "{{ ns.x in {} }}"),
    "unique of what is nested": _nested("(ns.x, ns.x)", "{{ [ns.x, ns.x] | unique | list }}"),
    "sorting what is nested": _nested("[ns.x, ns.x]", "{{ [ns.x, ns.x] | sort }}"),
    "the length of what is nested": _nested("[ns.x, ns.x]", "{{ ns.x | upper }}{{ ns.x | trim }}{{ ns.x is lower }}"),
    "changes of what is nested": _nested("(ns.x, ns.x)", "{% for a in [1, 2] %}{{ loop.changed(ns.x) }}{% endfor %}"),
    "adding what prints": _nested("[ns.x, ns.x]", "{{ ns.x + 1 }}"),
    "a text of what is nested": _nested("[ns.x, ns.x]", "{{ ns.x | center(10) }}{{ ns.x | indent }}{{ ns.x | replace('a', 'b') }}"),
    "a default of it": _nested("[ns.x, ns.x]", "{{ ns.y | default(ns.x) }}"),
    "a refusal of it": _nested("[ns.x, ns.x]", "{{ raise_exception(ns.x) }}"),
    "an argument of an unknown name": _nested("[ns.x, ns.x]", "{{ ns.x.nothing.more }}{{ {}[ns.x] }}"),
}  # fmt: skip
"""By what they do; each compiles."""

OF_MUCH: Final[dict[str, str]] = {
    "mapping characters": "{{ ((messages ~ loop) | map('string')) | map('string') | join('aa') }}",
    "selecting characters": "{{ (messages ~ loop) | select('string') | select('string') | list | length }}",
    "looking up for each": "{% for m in messages %}{% set x = [" + "m.a, " * 500 + "1] %}{% endfor %}",
    "loops for each": "{% for m in messages %}{% for i in range(200) %}{% endfor %}{% endfor %}",
    "macros for each": "{% macro f(m) %}{{ m.role }}{% endmacro %}{% for m in messages %}{% for i in range(9) %}{{ f(m) }}{% endfor %}{% endfor %}",
}
"""By what they do with a chat of very many messages."""

AT_COMPILING: Final[dict[str, str]] = {
    "a folded text": "{{ 'a' * 1000000000 }}",
    "a folded filter": "{{ 'a' | center(1000000000) }}",
    "a folded power": "{{ 9 ** 9 ** 9 }}",
    "a folded format": "{{ '%1000000000d' % 1 }}",
    "a folded test": "{{ '%1000000000d' is odd }}",
    "groups in groups": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "lists in lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "nots": "{{ " + "not " * 20000 + "1 }}",
    "minuses": "{{ " + "-" * 20000 + "1 }}",
    "a long sum": "{{ " + "1 + " * 20000 + "1 }}",
    "a long product": "{{ " + "1 * " * 20000 + "1 }}",
    "many filters": "{{ 1" + " | int" * 10000 + " }}",
    "many names": "{{ a" + ".a" * 20000 + " }}",
    "conditions in conditions": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "loops nested too deeply": "{% for a in b %}" * 500 + "{% endfor %}" * 500,
    "macros in macros": "{% macro a() %}" * 500 + "{% endmacro %}" * 500,
    "a long number": "{{ " + "9" * 10000 + " }}",
    "a long text": "a" * 70_000,
    "many spaces": "{{" + " " * 60_000 + "}}",
    "spaces before blocks": " " * 30_000 + "{% if 1 %}" + " " * 30_000 + "{% endif %}",
    "line breaks": "\n" * 60_000 + "{{ 1 }}",
    "open braces": "{" * 60_000,
    "open comments": "{#" * 30_000,
    "open quotes": "{{ " + "'" * 60_001 + " }}",
    "raw blocks": "{% raw %}" * 6_000,
    "an include": "{% include 'x' %}",
    "an import": "{% import 'x' as y %}",
    "a parent": "{% extends 'x' %}",
    "blocks": "{% block a %}{{ self.a() }}{% endblock %}",
    "escaping": "{% autoescape true %}{% endautoescape %}",
    "an unknown filter": "{{ 1 | nothing }}",
    "an unknown tag": "{% nothing %}",
    "not closed": "{% for a in b %}",
    "half a surrogate pair": "{{ '\ud800' }}\ud800",
}
"""By what they do; most are refused before they are rendered."""


def many_outputs(size: int = 1 << 16) -> str:
    """As many expressions as a template may hold: what compiling costs at most."""
    return "{{a}}" * (size // 5)
