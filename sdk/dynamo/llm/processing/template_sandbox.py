"""Jinja's sandbox with a budget: the calls, filters and tests of a chat template pay (`template_budget.py`) and work.

Filters that aren't here (`urlize`, `striptags`, `xmlattr`, `pprint`, `random`) are no chat template's, and some of them
take the square of a text's length. A module of its own since it needs Jinja at import, which `chat_template.py` avoids.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2.filters import FILTERS
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace, _PassArg, pass_context

from dynamo.llm.processing.template_budget import Budget, call_method, refuse
from dynamo.llm.processing.template_compiler import CountedGenerator

_OF_DICTIONARIES: Final = frozenset(dir(dict))
_AS_THEY_ARE: Final = ("abs", "attr", "count", "d", "default", "first", "last", "length")
"""Cheap, whatever they are given."""
_SHALLOW: Final = ("batch", "float", "int", "items", "list", "reverse", "round", "slice")
_CALLING: Final = ("map", "reject", "rejectattr", "select", "selectattr")
"""They call a filter or a test, or look something up, for each item."""
_DEEP: Final = ("dictsort", "groupby", "max", "min", "sort", "unique")
"""They compare, or hash, all of what they are given."""
_TEXTS: Final = ("filesizeformat", "title", "truncate", "urlencode", "wordcount")
_TESTED: Final = ("in", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan", "<=", "le")  # fmt: skip  # noqa: E501
_LAYOUT: Final = re.compile(r"(?:[^%]|%[-_0^#EO]?[A-Za-z%])*+")
_DEEPEST_INDENT: Final = 16
_MOST_PLACES: Final = 16
"""Parts of an attribute that a filter looks up in each item: `a.b,c` has three."""
_OF_OTHERS: Final = ("map", "reject", "select")
"""Their first argument is the name of a filter or a test, the others are its arguments."""


class CountedContext(Context):
    """What a template sees, with the budget of this render."""

    budget: Budget


class CountedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of chat templates."""

    code_generator_class = CountedGenerator
    context_class = CountedContext
    intercepted_binops = frozenset(("-", "*", "/", "//", "**", "%"))

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look a name up; in a dictionary, which nearly all are, without asking the class first."""
        if type(obj) is dict and attribute not in _OF_DICTIONARIES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look a key up; hashing a tuple of tuples may take for ever."""
        if type(argument) is not str and isinstance(argument, tuple):
            return self.undefined(obj=obj, name="(…)")
        try:
            return obj[argument]
        except (TypeError, LookupError):
            return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Any:
        """`str.format`, which says whose it is."""
        wrapped: Any = super().wrap_str_format(value)
        if wrapped is not None:
            wrapped.form = value.__self__
        return wrapped

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Pay for an operator."""
        return context.budget.operator(operator, left, right, self.binop_table[operator])

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Pay for a call; of the methods of Python's own types only known ones are called."""
        budget: Budget = __context.budget
        budget.spend(4)
        if type(__obj) is BuiltinMethodType:
            return call_method(budget, __obj, args, {k: v for k, v in kwargs.items() if not k.startswith("_")})
        if (form := getattr(__obj, "form", None)) is not None and isinstance(form, str):
            named = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}
            return budget.format(form, __obj, args, named)
        if __obj in (dict, Namespace) and not all(isinstance(argument, dict) for argument in args):
            refuse("makes a dictionary of a list")
        if type(__obj) is MethodType and isinstance(__obj.__self__, LoopContext):
            budget.weigh(args)
        return budget.made(super().call(__context, __obj, *args, **kwargs))


def filters() -> dict[str, Callable[..., Any]]:
    """All filters, by name."""
    own: dict[str, Callable[..., Any]] = {
        "_tick": _tick, "center": _center, "e": _escape, "escape": _escape, "format": _format, "indent": _indent,
        "join": _join, "replace": _replace, "safe": _string, "string": _string, "sum": _sum, "tojson": _tojson,
        "trim": _trim, "capitalize": _by(str.capitalize), "lower": _by(str.lower), "upper": _by(str.upper),
        "wordwrap": _wordwrap,
    }  # fmt: skip
    filters: dict[str, Any] = {name: FILTERS[name] for name in _AS_THEY_ARE}
    filters |= {name: _paid(FILTERS[name], _shallow) for name in _SHALLOW}
    filters |= {name: _paid(FILTERS[name], _called) for name in _CALLING}
    filters |= {name: _paid(FILTERS[name], _deep) for name in _DEEP}
    filters |= {name: _paid(FILTERS[name], _text) for name in _TEXTS}
    return filters | own


def tests() -> dict[str, Callable[..., Any]]:
    """All tests, by name."""
    known: Mapping[str, Any] = TESTS
    tests: dict[str, Any] = dict(known)
    tests |= {name: _compared(known[name]) for name in _TESTED}
    tests |= {name: _of_number(known[name]) for name in ("odd", "even", "divisibleby")}
    return tests | {name: _of_text(known[name]) for name in ("lower", "upper")}


def _paid(work: Callable[..., Any], pay: Callable[[Budget, Any], Any]) -> Callable[..., Any]:
    """One of Jinja's filters, paid for before and after."""
    needs = _PassArg.from_obj(work)
    of_others = any(work is FILTERS[name] for name in _OF_OTHERS)

    @pass_context
    def paid(context: Any, value: Any = None, *args: Any, **named: Any) -> Any:
        budget: Budget = context.budget
        value = pay(budget, value)
        budget.numbers((*args, *named.values()))
        for part in (*args, *named.values()):
            budget.weigh(part)
        _few_places((named.get("attribute"),) if of_others else (*args, *named.values()))
        if needs is _PassArg.context:
            return budget.made(work(context, value, *args, **named))
        if needs is _PassArg.eval_context:
            return budget.made(work(context.eval_ctx, value, *args, **named))
        if needs is _PassArg.environment:
            return budget.made(work(context.environment, value, *args, **named))
        return budget.made(work(value, *args, **named))

    return paid


def _few_places(values: Iterable[Any]) -> None:
    """Refuse an attribute of many parts, all of which are looked up in each item."""
    for value in values:
        if isinstance(value, str) and value.count(".") + value.count(",") >= _MOST_PLACES:
            refuse("looks too deeply into what a filter is given")


def _by(method: Callable[[str], str]) -> Callable[..., str]:
    """A filter that is a method of texts."""

    @pass_context
    def applied(context: Any, value: Any) -> str:
        budget: Budget = context.budget
        text: str = value if type(value) is str else budget.text(value)
        budget.characters(len(text))
        return method(text)

    return applied


def _shallow(budget: Budget, value: Any) -> Any:
    if isinstance(value, (str, list, tuple, dict, range)):
        budget.spend(1 + len(value))
    return value


def _called(budget: Budget, value: Any) -> Any:
    value = _shallow(budget, value)
    return budget.called(value) if isinstance(value, Iterable) else value


def _deep(budget: Budget, value: Any) -> Any:
    items = value if isinstance(value, Mapping) else budget.items(value)
    for _ in range(4):  # each is compared a few times
        budget.weigh(items)
    return items


def _text(budget: Budget, value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value
    text = budget.text(value)
    budget.characters(3 * len(text))
    return text


def _compared(work: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def compared(context: Any, value: Any, other: Any) -> Any:
        budget: Budget = context.budget
        budget.spend(4)
        return work(budget.compared(value), budget.searched(other))

    return compared


def _of_number(work: Callable[..., Any]) -> Callable[..., Any]:
    def of_number(value: Any, *args: Any) -> bool:
        return all(isinstance(number, (int, float)) for number in (value, *args)) and bool(work(value, *args))

    return of_number


def _of_text(work: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def of_text(context: Any, value: Any) -> bool:
        return bool(work(_text(context.budget, value)))

    return of_text


@pass_context
def _tick(context: Any, value: Any, steps: int = 1) -> Any:
    context.budget.spend(steps)
    return value


@pass_context
def _trim(context: Any, value: Any, chars: str | None = None) -> str:
    budget: Budget = context.budget
    text: str = value if type(value) is str else budget.text(value)
    budget.characters(len(text))
    budget.crossed(text, chars)
    return text.strip(chars)


@pass_context
def _string(context: Any, value: Any) -> str:
    return context.budget.text(value)  # type: ignore[no-any-return]


@pass_context
def _escape(context: Any, value: Any) -> str:
    text = _text(context.budget, context.budget.text(value))
    return context.budget.made(html.escape(text).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"))  # type: ignore[no-any-return]


@pass_context
def _center(context: Any, value: Any, width: int = 80) -> str:
    context.budget.numbers((width,))
    context.budget.characters(width)
    return _text(context.budget, context.budget.text(value)).center(width)  # type: ignore[no-any-return]


@pass_context
def _format(context: Any, value: Any, *args: Any, **named: Any) -> Any:
    return context.budget.percent(context.budget.text(value), named or args)


@pass_context
def _indent(context: Any, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    budget: Budget = context.budget
    budget.numbers((width,))
    text = budget.text(value)
    space = width if isinstance(width, str) else " " * width
    budget.characters(2 * len(text) + (text.count("\n") + 1) * len(space))
    rest = text + "\n"  # as Jinja does, so that a last empty line is one
    if blank:
        rest = ("\n" + space).join(rest.splitlines())
    else:
        begin, *lines = rest.splitlines()
        rest = "\n".join([begin, *(space + line if line else line for line in lines)])
    return space + rest if first else rest


@pass_context
def _join(context: Any, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    budget: Budget = context.budget
    items = budget.items(value)
    if attribute is not None:
        items = budget.items(context.environment.filters["map"](context, items, attribute=attribute))
    texts, between = [budget.text(item) for item in items], budget.text(d)
    budget.characters(sum(map(len, texts)) + len(between) * len(texts))
    return between.join(texts)


@pass_context
def _replace(context: Any, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    budget: Budget = context.budget
    return budget.replaced(budget.text(value), budget.text(old), budget.text(new), count)


@pass_context
def _sum(context: Any, value: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    budget: Budget = context.budget
    items = budget.items(value)
    if attribute is not None:
        items = budget.items(context.environment.filters["map"](context, items, attribute=attribute))
    total = start
    for item in items:
        total = budget.add(total, item)
    return total


@pass_context
def _wordwrap(context: Any, value: Any, width: int = 79, *args: Any, **named: Any) -> Any:
    if not 8 <= width <= 10_000 or any(
        isinstance(argument, str) and len(argument) > 8 for argument in (*args, *named.values())
    ):
        refuse("wraps a text too narrowly")
    text = _text(context.budget, context.budget.text(value))
    context.budget.characters(16 * len(text))
    return context.budget.made(FILTERS["wordwrap"](context.environment, text, width, *args, **named))


@pass_context
def _tojson(
    context: Any, value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Plain JSON: Jinja's own filter escapes HTML characters, which models were not trained on."""
    if indent is not None and not (isinstance(indent, int) and indent <= _DEEPEST_INDENT):
        refuse(f"indents JSON by more than {_DEEPEST_INDENT}")
    if separators is not None and any(len(separator) > _DEEPEST_INDENT for separator in separators):
        refuse("puts a long text between parts of JSON")
    budget: Budget = context.budget
    budget.written(value, indent or 0)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    budget.characters(len(text))
    return text


def strftime_layout(layout: Any) -> str:
    """A layout of a date, as short and plain as those of templates are."""
    if not isinstance(layout, str) or len(layout) > 256 or _LAYOUT.fullmatch(layout) is None:
        refuse("asks for a date in too long a layout")
    return layout
