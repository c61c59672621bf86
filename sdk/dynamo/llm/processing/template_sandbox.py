"""Jinja's sandbox with a budget: whatever a template does pays for it (`template_budget.py`).

Jinja compiles templates to Python; the generator here writes the calls that pay. A module of its own since it needs
Jinja at import, which `chat_template.py` avoids.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import BuiltinMethodType, MethodType
from typing import Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from dynamo.llm.processing.template_budget import Budget, refuse

_OF_DICTIONARIES: Final = frozenset(dir(dict))
_FOREIGN: Final = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.Block, nodes.EvalContextModifier)
_LOOKUP: Final = 3
"""Steps of an attribute or a key: what isn't there takes longest."""
_OF_LOOP: Final = 8
_OF_ATTR: Final = 20
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


class CountedContext(Context):
    """Context that a template sees, with the budget of this render."""

    budget: Budget


class CountedGenerator(CodeGenerator):
    """Writes the Python of a template, in which every loop and operator pays."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bodies: dict[int, int] = {}
        """What running a body once costs, by the body's identity."""

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("budget = context.budget")
        self.writeline("tick, text, concat = budget.tick, budget.text, budget.concat")

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 - Jinja's name
        for foreign in node.find_all(_FOREIGN):
            self.fail(f"{type(foreign).__name__.lower()} is not read here", foreign.lineno)
        super().visit_Template(node, frame)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._bodies[id(node.body)] = 1 + _weight(node.body)
        if node.test is not None:
            steps = nodes.Const(1 + _weight([node.test]))
            always = nodes.Filter(nodes.Const(True), "_tick", [steps], [], None, None, lineno=node.lineno)
            node.test = nodes.And(always, node.test, lineno=node.lineno)
        super().visit_For(node, frame)

    def visit_Macro(self, node: nodes.Macro, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._bodies[id(node.body)] = _weight(node.body)
        super().visit_Macro(node, frame)

    def visit_CallBlock(self, node: nodes.CallBlock, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._bodies[id(node.body)] = _weight(node.body)
        super().visit_CallBlock(node, frame)

    def pull_dependencies(self, nodes_: Any) -> None:
        super().pull_dependencies(nodes_)
        if "_tick" not in self.filters:
            marks = nodes.Filter(nodes.Const(True), "_tick", [], [], None, None, lineno=1)
            super().pull_dependencies([nodes.ExprStmt(marks, lineno=1)])

    def blockvisit(self, nodes_: Any, frame: Frame) -> None:
        if steps := self._bodies.get(id(nodes_)):
            self.writeline(f"tick({steps})")
        super().blockvisit(nodes_, frame)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write("text(")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self._paid("join", node.nodes, frame, "((", "))")

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        parts: list[nodes.Expr] = [node.right]
        left: nodes.Expr = node.left
        while isinstance(left, nodes.Add):
            parts.append(left.right)
            left = left.left
        self._paid("add", [left, *reversed(parts)], frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        plain = sum(isinstance(side, nodes.Const) for side in sides) >= len(sides) - 1
        self.write("(")
        self._side(node.expr, frame, "" if plain else "compared")
        for operand in node.ops:
            self.write(f" {operators[operand.op]} ")
            within = operand.op in ("in", "notin") and not isinstance(operand.expr, nodes.Const)
            self._side(operand.expr, frame, "searched" if within else "" if plain else "compared")
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        if isinstance(node.arg, nodes.Slice):
            self.write("budget.cut(")
            super().visit_Getitem(node, frame)
            self.write(")")
        else:
            super().visit_Getitem(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 - Jinja's name
        self.write("{")
        for pair in node.items:
            self._side(pair.key, frame, "" if isinstance(pair.key, nodes.Const) else "key")
            self.write(": ")
            self.visit(pair.value, frame)
            self.write(", ")
        self.write("}")

    def _side(self, node: nodes.Expr, frame: Frame, paid: str) -> None:
        if paid:
            self._paid(paid, [node], frame)
        else:
            self.visit(node, frame)

    def _paid(self, name: str, parts: list[nodes.Expr], frame: Frame, begin: str = "(", end: str = ")") -> None:
        self.write(f"budget.{name}{begin}")
        for part in parts:
            self.visit(part, frame)
            self.write(", ")
        self.write(end)


def _weight(body: Iterable[nodes.Node]) -> int:
    """Return the steps of what doesn't pay itself in a body: looking things up, and cheap filters and tests.

    A loop within pays for its own body. Most templates look something up fifty times for a message.
    """
    steps, left = 0, list(body)
    while left:
        node = left.pop()
        if isinstance(node, (nodes.Getattr, nodes.Getitem)):
            steps += _OF_LOOP if isinstance(node.node, nodes.Name) and node.node.name == "loop" else _LOOKUP
        elif isinstance(node, (nodes.Filter, nodes.Test)):
            steps += _OF_ATTR if node.name == "attr" else 1
        left += node.iter_child_nodes(exclude=("body",) if isinstance(node, nodes.For) else None)
    return steps


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
            return _method(budget, __obj, args, {k: v for k, v in kwargs.items() if not k.startswith("_")})
        if (form := getattr(__obj, "form", None)) is not None and isinstance(form, str):
            named = {k: v for k, v in kwargs.items() if k not in ("_loop_vars", "_block_vars")}
            return budget.format(form, __obj, args, named)
        if __obj in (dict, Namespace) and not all(isinstance(argument, dict) for argument in args):
            refuse("makes a dictionary of a list")
        if type(__obj) is MethodType and isinstance(__obj.__self__, LoopContext):
            budget.weigh(args)
        return budget.made(super().call(__context, __obj, *args, **kwargs))


def _method(budget: Budget, method: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Call a method of a text, a list or a dictionary."""
    owner, name = method.__self__, method.__name__
    if isinstance(owner, str) and name in _TEXT:
        return _of_text(budget, owner, method, args, named)
    if isinstance(owner, dict) and name in _DICTIONARIES:
        if args:
            budget.key(args[0])
        return budget.made(method(*args, **named))
    if isinstance(owner, (list, tuple, range)) and name in _LISTS:
        budget.weigh(owner)
        budget.weigh(args)
        return method(*args, **named)
    raise SecurityError(f"{name!r} of a {type(owner).__name__} is not called here")


def _of_text(budget: Budget, owner: str, method: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
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
