"""Small changes of Python code: a comparison, a sign, a number, a condition, a call that is left out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LEFT_ALONE = (ast.Raise, ast.JoinedStr, ast.Assert)
"""What errors say is tested by their words; a change of it tells nothing of the tests of values."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change.

    Attributes:
        line: Of the source, from one.
        what: Old and new.
        apply: Makes it, in the tree that it came from.
    """

    line: int
    what: str
    apply: Callable[[], None]


def mutants(tree: ast.AST) -> list[Mutant]:
    """Return all changes of a module, the same list at each call for the same source."""
    return [mutant for node in _walk(tree) for mutant in _of(node)]


def mutated(source: str, number: int) -> ast.Module:
    """Return a module with the change of that number."""
    tree = ast.parse(source)
    mutants(tree)[number].apply()
    return ast.fix_missing_locations(tree)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes whose value a run depends on: no annotations, no decorators, no docstrings, no words of errors."""
    if isinstance(node, _LEFT_ALONE):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child)


def _of(node: ast.AST) -> Iterator[Mutant]:
    def change(what: str, **fields: object) -> Mutant:
        def apply() -> None:
            for name, value in fields.items():
                setattr(node, name, value)

        at = node.target if isinstance(node, ast.comprehension) else node  # which has no line of its own
        return Mutant(getattr(at, "lineno", 0), what, apply)

    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            other = _COMPARISONS[type(op)]
            yield change(f"{type(op).__name__} -> {other.__name__}", ops=[other()])
        case ast.BinOp(op=op, left=left) if type(op) in _OPERATORS and not _is_text(left):
            yield change(f"{type(op).__name__} -> {_OPERATORS[type(op)].__name__}", op=_OPERATORS[type(op)]())
        case ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield change(f"{type(op).__name__}= -> {_OPERATORS[type(op)].__name__}=", op=_OPERATORS[type(op)]())
        case ast.BoolOp(op=ast.And()):
            yield change("and -> or", op=ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield change("or -> and", op=ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield change("not left out", operand=ast.UnaryOp(ast.Not(), operand))
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            yield change(f"{value} -> {value + 1}", value=value + 1)
        case ast.Constant(value=bool(value)):
            yield change(f"{value} -> {not value}", value=not value)
        case ast.If(test=test) | ast.IfExp(test=test) if not _is_for_types(test):
            yield change("condition turned round", test=ast.UnaryOp(ast.Not(), test))
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield change(f"{name} -> {_FUNCTIONS[name]}", func=ast.Name(_FUNCTIONS[name], ast.Load()))
        case ast.comprehension(ifs=[_, *_]):
            yield change("condition of a comprehension left out", ifs=[])
        case ast.Expr(value=ast.Call()):
            yield change(f"left out: {ast.unparse(node)[:60]}", value=ast.Constant(None))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_for_types(test: ast.AST) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"
