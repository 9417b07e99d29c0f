"""The changes: the places where a module can be changed, and the module with one change. Pure."""

from __future__ import annotations

import ast
import copy
import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SAYS_ONLY = {"log", "logger"}
"""Calls that only log, which the tests do not check."""

Change = Callable[[ast.AST], ast.AST]
"""Receives a copy of the node and returns its replacement."""


@dataclass(frozen=True, slots=True)
class Site:
    """One place of a module, and one way to change it. ``key`` identifies it as long as the module stays the same."""

    line: int
    column: int
    kind: str
    _change: Change

    @property
    def key(self) -> str:
        return f"{self.line}:{self.column}:{self.kind}"


def sites(tree: ast.Module) -> list[Site]:
    """Every place that can be changed, in source order."""
    found = _Finder()
    found.visit(tree)
    return sorted(found.sites, key=lambda site: (site.line, site.column, site.kind))


def mutated(tree: ast.Module, site: Site) -> ast.Module:
    """The module with that one change; the given tree stays as it is."""
    changed = _Changer(site).visit(copy.deepcopy(tree))
    assert isinstance(changed, ast.Module)
    return ast.fix_missing_locations(changed)


def difference(tree: ast.Module, site: Site) -> list[str]:
    """The lines that the change removes and adds."""
    before, after = (ast.unparse(each).splitlines() for each in (tree, mutated(tree, site)))
    lines = difflib.unified_diff(before, after, lineterm="", n=0)
    return [line for line in lines if line[:1] in "+-" and not line.startswith(("---", "+++"))]


class _Changer(ast.NodeTransformer):
    def __init__(self, site: Site) -> None:
        self._site = site
        self._changed = False

    def visit(self, node: ast.AST) -> ast.AST:
        at = (getattr(node, "lineno", 0), getattr(node, "col_offset", -1))
        if not self._changed and at == (self._site.line, self._site.column):
            for site in _changes(node):
                if site.key == self._site.key:
                    self._changed = True
                    return ast.copy_location(site._change(node), node)
        return self.generic_visit(node)


class _Finder(ast.NodeVisitor):
    """Leaves out places without effect in tests, or with an effect on words only: annotations, error messages,
    logging."""

    def __init__(self) -> None:
        self.sites: list[Site] = []

    def visit(self, node: ast.AST) -> None:
        self.sites += _changes(node)
        match node:
            case ast.Raise() | ast.JoinedStr():
                return
            case ast.Expr(value=ast.Call() as call) if _only_says(call):
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    self.visit(value)
            case ast.FunctionDef(body=body, args=arguments):
                for default in [*arguments.defaults, *(each for each in arguments.kw_defaults if each is not None)]:
                    self.visit(default)
                for statement in body:
                    self.visit(statement)
            case ast.ClassDef(body=body):
                for statement in body:
                    self.visit(statement)
            case _:
                self.generic_visit(node)


def _only_says(call: ast.Call) -> bool:
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in _SAYS_ONLY
    )


def _changes(node: ast.AST) -> Iterator[Site]:
    def site(kind: str, change: Change) -> Site:
        return Site(node.lineno, node.col_offset, kind, change)  # type: ignore[attr-defined]

    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARED:
            yield site("compare", _with(ops=[_COMPARED[type(op)]()]))
        case ast.BoolOp(op=op, values=values):
            yield site("and-or", _with(op=ast.Or() if isinstance(op, ast.And) else ast.And()))
            for at in range(len(values)):
                yield site(f"drop-{at}", _without(at))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield site("not", lambda _: operand)
        case ast.BinOp(op=op) if type(op) in _COMPUTED and not _is_text(node):
            yield site("compute", _with(op=_COMPUTED[type(op)]()))
        case ast.Constant(value=bool(value)):
            yield site("constant", lambda _: ast.Constant(not value))
        case ast.Constant(value=int(number) | float(number)):
            yield site("constant", lambda _: ast.Constant(number + 1))
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            yield site("call", _with(func=ast.Name(_CALLED[name], ast.Load())))
        case ast.If(test=test) | ast.IfExp(test=test) if not _is_type_checking(test):
            yield site("if-true", _with(test=ast.Constant(True)))
            yield site("if-false", _with(test=ast.Constant(False)))
        case ast.Expr(value=ast.Call() as call) if not _only_says(call):
            yield site("delete", lambda _: ast.Pass())
        case ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Delete():
            yield site("delete", lambda _: ast.Pass())
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield site("return", _with(value=ast.Constant(None)))
        case ast.Continue():
            yield site("loop", lambda _: ast.Break())
        case ast.Break():
            yield site("loop", lambda _: ast.Continue())


def _with(**fields: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        for name, value in fields.items():
            setattr(node, name, value)
        return node

    return change


def _without(number: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.BoolOp)
        left = [value for at, value in enumerate(node.values) if at != number]
        return ast.BoolOp(node.op, left) if len(left) > 1 else left[0]

    return change


def _is_text(node: ast.AST) -> bool:
    """Whether strings or types are joined there."""
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.walk(node)
    )


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
