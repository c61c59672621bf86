"""What rendering a chat template may cost: counted in steps by the template itself, on whatever thread it runs.

Templates come with model files, and whoever registers a worker brings some. No deadline ends a render on an event
loop, so each loop, call, filter and operator of a template pays before it works (`template_sandbox.py` makes them).
A step is about 0.1 us; 64 characters of text that is made are one. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import ItemsView as Pairs
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, ValuesView
from itertools import islice
from typing import Any, Final, NoReturn

from dynamo.runtime.errors import InvalidArgument

STEPS: Final = 50_000
"""For any chat; those that were looked at take less than 5,000, and 500 for a message."""
PER_MESSAGE: Final = 1000
PER_TOOL: Final = 3000
CHARACTERS: Final = 64
"""That are made for one step."""
COPIES: Final = 32
"""How often a template may put each character of its input into another text."""
LONGEST: Final = 4 << 20
"""Characters of any text that a template makes, beside twice its input."""
MOST_STEPS: Final = 4_000_000
"""However much came with a request: about a second."""
MOST: Final = 10_000
"""The largest number that a filter or a method of texts takes: most are widths."""
_MOST_BITS: Final = 1 << 12
"""Of a number: more than any float has, and few enough that no operator is slow."""
_AT_ONCE: Final = 64
"""Parts of a template that are taken before they are paid for."""
_COMPARED: Final = 256
"""Characters of a text that are compared with one of another in a step: looked for from the end, or stripped."""
_CALL: Final = 6
"""Steps of a filter's or a test's call for an item of a list."""
_WIDTH: Final = re.compile(r"%[^a-zA-Z%]*(?:[0-9]{4}|\*)")
_FIELD: Final = re.compile(r"\{[^{}]*(?:[0-9]{4}|\{)")
_SCALARS: Final = (int, float, bool, type(None))
_PLAIN: Final = frozenset(_SCALARS)
_VIEWS: Final = (KeysView, ValuesView, Pairs)
_WIDE: Final = frozenset(("center", "ljust", "rjust", "zfill"))
_TEXT: Final = frozenset(
    (
        *_WIDE, "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
        "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper",
        "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
        "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    )
)  # fmt: skip
_CROSSED: Final = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"))
"""They compare every character with every one of their argument, where the argument is made for that."""
_LISTS: Final = frozenset(("count", "index", "copy"))
_DICTIONARIES: Final = frozenset(("get", "items", "keys", "values", "copy"))


def refuse(what: str) -> NoReturn:
    """Raise what a caller reads of a template that goes too far."""
    raise InvalidArgument(f"the model's chat template {what}: its worker should serve another one")


class Budget:
    """One render's steps. Every method pays first, then does what it is named after."""

    __slots__ = ("_left", "_longest", "_whole")

    def __init__(self, characters: int = 0, messages: int = 0, tools: Sequence[Any] = ()) -> None:
        self._whole = frozenset(map(id, tools))
        """Values that came with the request, and so hold nothing twice."""
        steps = STEPS + PER_MESSAGE * messages + PER_TOOL * len(tools) + characters * COPIES // CHARACTERS
        self._left = min(steps, MOST_STEPS)
        self._longest = LONGEST + 2 * characters

    @property
    def left(self) -> int:
        """Count the steps that may yet be taken."""
        return self._left

    def spend(self, steps: int = 1) -> None:
        """Take steps; `InvalidArgument` where there are none left."""
        self._left -= steps
        if self._left < 0:
            refuse("takes too many steps for these messages")

    tick = spend

    def characters(self, count: int) -> None:
        """Pay for a text of so many characters."""
        if count > self._longest:
            refuse(f"makes a text of more than {self._longest} characters")
        self.spend(1 + count // CHARACTERS)

    def made(self, value: Any) -> Any:
        """Pay for what a function gave; what is lazy pays as it comes."""
        if isinstance(value, (str, bytes)):
            self.characters(len(value))
        elif isinstance(value, (list, tuple, dict)):
            self.spend(1 + len(value))
        elif isinstance(value, Iterator):
            return self.counted(value)
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            refuse("computes too large a number")
        return value

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what is lazy, with a step for each item."""
        for item in items:
            self.spend(2)
            yield item

    def called(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield what a filter or a test is called with, one by one."""
        for item in items:
            self.spend(_CALL)
            yield item

    def crossed(self, text: str, other: Any) -> None:
        """Pay for a text each of whose characters may be compared with each of another."""
        if isinstance(other, str):
            self.spend(len(text) * len(other) // _COMPARED)

    def items(self, value: Iterable[Any]) -> list[Any]:
        """List all items of a list, of a dictionary or of what is lazy."""
        if isinstance(value, (list, tuple, dict, str)):
            self.spend(1 + len(value))
            return list(value)
        return list(self.counted(value))

    def weigh(self, value: Any, *, per_depth: int = 0, printed: bool = False) -> Any:
        """Pay for all that is in a value, as often as it is in there: a list of a list twice, 40 times over, is huge.

        What is to be printed may hold only what is weighed: a namespace, say, prints all that is in it.
        """
        level, depth, steps = [value], 0, 0
        while level and steps <= self._left:
            depth, inner, characters = depth + 1, [], 0
            for part in level:
                kind = type(part)
                if kind is str:
                    characters += len(part)
                elif kind is dict:
                    inner += part.values()
                elif kind is list or kind is tuple:
                    inner += part
                elif kind not in _PLAIN:
                    inner += _within(part, printed)
                if len(inner) > self._left:
                    break
            steps += len(level) * (1 + per_depth * depth) + characters // CHARACTERS + len(inner)
            level = inner
        self.spend(steps)
        return value

    def written(self, value: Any, indent: int) -> None:
        """Pay for what is to be written as JSON, indented so far."""
        if indent or id(value) not in self._whole:
            self.weigh(value, per_depth=indent)

    def text(self, value: Any) -> str:
        """Return a value as a template prints it."""
        if type(value) is str:
            return value
        if isinstance(value, (*_SCALARS, str)):
            return str(value)
        if isinstance(value, (Mapping, list, tuple, set, frozenset, bytes, range, *_VIEWS)):
            text = str(self.weigh(value, printed=True))
            self.characters(len(text))
            return text
        return str(value) if type(value).__name__ == "Undefined" else f"<{type(value).__name__}>"

    def concat(self, parts: Iterable[str]) -> str:
        """Return the text that a part of the template has printed."""
        texts = parts if isinstance(parts, list) else list(parts)
        self.characters(sum(map(len, texts)))
        return "".join(texts)

    def printed(self, parts: Iterator[str]) -> str:
        """Return the text of a whole template, with steps for each part: for some of them at once, which is faster."""
        texts: list[str] = []
        while True:
            some = list(islice(parts, _AT_ONCE))
            self.spend(2 * len(some))
            texts += some
            if len(some) < _AT_ONCE:
                return self.concat(texts)

    def join(self, values: Iterable[Any]) -> str:
        """Pay for `~`."""
        return self.concat(map(self.text, values))

    def add(self, *values: Any) -> Any:
        """Pay for `+`, of all that stand in a row."""
        try:
            self.characters(sum(map(len, values)))
            return "".join(values)
        except TypeError:  # numbers, lists, texts and arguments of calls
            total = values[0]
            for value in values[1:]:
                if isinstance(total, (str, list, tuple)) and isinstance(value, (str, list, tuple)):
                    self.characters(len(total) + len(value))
                    self.spend(len(total) if not isinstance(total, str) else 0)
                else:
                    self._number(total, value)
                total = total + value
            return total

    def operator(self, kind: str, left: Any, right: Any, work: Any) -> Any:
        """Pay for any other operator of two values."""
        if kind == "%" and isinstance(left, (str, bytes)):
            return self.percent(left, right)
        if kind == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            times = next((value for value in (left, right) if isinstance(value, int)), 0)
            size = sum(len(value) for value in (left, right) if isinstance(value, (str, bytes, list, tuple)))
            self.characters(max(0, size * times))
            self.spend(max(0, size * times) if not isinstance(left, str) and not isinstance(right, str) else 0)
        else:
            self._number(left, right)
        whole = kind == "**" and isinstance(left, int) and isinstance(right, int)
        if whole and left.bit_length() * max(right, 0) > _MOST_BITS:
            refuse("computes too large a number")
        self.spend()
        return work(left, right)

    def _number(self, *values: Any) -> None:
        for value in values:
            if isinstance(value, int) and value.bit_length() > _MOST_BITS:
                refuse("computes too large a number")
            if not isinstance(value, _SCALARS):
                self.weigh(value)

    def percent(self, form: Any, values: Any) -> Any:
        """Pay for `"%s" % value`."""
        if not isinstance(form, str) or _WIDTH.search(form):
            refuse("formats a text too widely")
        before = self._left
        self.weigh(values, printed=True)
        self.spend(form.count("%") * (before - self._left))
        return self.made(form % values)

    def format(self, form: str, work: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Pay for `"{}".format(value)`."""
        if _FIELD.search(form):
            refuse("formats a text too widely")
        before = self._left
        for value in (*args, *named.values()):
            self.weigh(value, printed=True)
        self.spend(form.count("{") * (before - self._left))
        return self.made(work(*args, **named))

    def compared(self, value: Any) -> Any:
        """Pay for what is compared, or looked for: all of it is looked at."""
        if type(value) is str:
            self.spend(len(value) // CHARACTERS)
        elif not isinstance(value, _SCALARS):
            self.weigh(value)
        return value

    def searched(self, value: Any) -> Any:
        """Pay for what something is looked for in."""
        if type(value) is str:
            self.spend(1 + len(value) // CHARACTERS)
        elif isinstance(value, (list, tuple, *_VIEWS)):
            self.weigh(value)
        elif isinstance(value, Iterator):
            return self.counted(value)
        return value

    def cut(self, value: Any) -> Any:
        """Cut a part of a text or of a list."""
        return self.made(value)

    def key(self, value: Any) -> Any:
        """Pay for what a dictionary is asked by."""
        return value if isinstance(value, (str, *_SCALARS)) else refuse("has a key that is no text")

    def numbers(self, values: Iterable[Any]) -> None:
        """Refuse what is too wide or too many."""
        for value in values:
            if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MOST):
                refuse(f"asks a filter or a text for {str(value)[:20]} of something")

    def replaced(self, text: str, old: str, new: str, count: int | None = None) -> str:
        """Pay for `replace`."""
        self.characters(len(text))
        times = text.count(old) if count is None or count < 0 else min(count, text.count(old))
        self.characters(len(text) + times * max(0, len(new) - len(old)))
        return text.replace(old, new, times)


def _within(value: Any, printed: bool) -> Iterable[Any]:
    """Yield what is in a value of a rarer type, as far as it is looked at where it is compared or printed."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (str, bytes)):
        return (" " * len(value),)
    if isinstance(value, (list, tuple, set, frozenset, *_VIEWS)):
        return value
    if printed and not isinstance(value, (*_SCALARS, range)) and type(value).__name__ != "Undefined":
        refuse(f"prints a {type(value).__name__}")
    return ()


def call_method(budget: Budget, method: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a method of a text, a list or a dictionary, and pay for it; of others none is called."""
    owner, name = method.__self__, method.__name__
    if isinstance(owner, str) and name in _TEXT:
        return _call_of_text(budget, owner, method, args, named)
    if isinstance(owner, dict) and name in _DICTIONARIES:
        if args:
            budget.key(args[0])
        return budget.made(method(*args, **named))
    if isinstance(owner, (list, tuple, range)) and name in _LISTS:
        budget.weigh(owner)
        budget.weigh(args)
        return method(*args, **named)
    from jinja2.exceptions import SecurityError  # only who renders has loaded Jinja

    raise SecurityError(f"{name!r} of a {type(owner).__name__} is not called here")


def _call_of_text(budget: Budget, owner: str, method: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    name = method.__name__
    if name == "join" and len(args) == 1:
        texts = budget.items(args[0])
        budget.characters(sum(len(text) for text in texts if isinstance(text, str)) + len(owner) * len(texts))
        return owner.join(texts)
    if name == "replace" and len(args) in (2, 3) and isinstance(args[0], str) and isinstance(args[1], str):
        return budget.replaced(owner, args[0], args[1], args[2] if len(args) == 3 else named.get("count"))
    if name in _WIDE:
        budget.numbers((*args, *named.values()))
    for value in (*args, *named.values()):
        if not isinstance(value, (str, int, type(None), tuple)):
            refuse(f"gives a {type(value).__name__} to {name!r} of a text")
    budget.characters(len(owner))
    for value in (*args, *named.values()):
        if name in _CROSSED:
            budget.crossed(owner, value)
        else:
            budget.weigh(value)
    return budget.made(method(*args, **named))
