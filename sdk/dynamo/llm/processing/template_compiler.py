"""What Jinja compiles chat templates to: Python in which every loop and operator pays (`template_budget.py`).

A module of its own since it needs Jinja at import, which `chat_template.py` avoids. `template_sandbox.py`
compiles by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.ext import Extension

if TYPE_CHECKING:
    from jinja2.parser import Parser

_FOREIGN: Final = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.Block, nodes.EvalContextModifier)
_LOOKUP: Final = 3
"""Steps of an attribute or a key: what isn't there takes longest."""
_OF_LOOP: Final = 8
_OF_ATTR: Final = 20


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


class GenerationTag(Extension):
    """Accept `{% generation %}…{% endgeneration %}`: it marks turns for training, and its body is rendered."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
