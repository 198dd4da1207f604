"""What has no body is an interface: a method of a protocol, an overload, or one that every class that is made has."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[1] / "torchipu"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Class(NamedTuple):
    """A class of the source: the names of those it is made from, its members, and its methods without a body."""

    name: str
    bases: tuple[str, ...]
    members: frozenset[str]
    empty: tuple[str, ...]
    is_protocol: bool


def has_no_body(function: Function) -> bool:
    """Whether there is nothing behind the docstring but ``...``, ``pass`` or an error without words."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    match body:
        case [ast.Expr(value=ast.Constant(value=value))]:
            return value is Ellipsis
        case [ast.Pass()]:
            return True
        case [ast.Raise(exc=ast.Name(id="NotImplementedError"))]:
            return True
    return False


def is_empty(function: Function) -> bool:
    """Whether it has no body, and is no overload."""
    return has_no_body(function) and "overload" not in names_in(function.decorator_list)


def names_in(nodes: list[ast.expr]) -> tuple[str, ...]:
    """Return the last name of each: ``ABC`` of ``abc.ABC``, ``Protocol`` of ``Protocol[T]``."""
    bare = [node.value if isinstance(node, ast.Subscript) else node for node in nodes]
    return tuple(ast.unparse(node).rpartition(".")[2] for node in bare)


def read(tree: ast.Module) -> tuple[list[Class], list[str]]:
    """Return the classes of a module, and the functions without a body that are in none."""
    classes, loose = list[Class](), list[str]()

    def walk(node: ast.AST, is_in_class: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                classes.append(of(child))
            elif isinstance(child, Function) and not is_in_class and is_empty(child):
                loose.append(child.name)
            walk(child, isinstance(child, ast.ClassDef))

    walk(tree, False)
    return classes, loose


def of(node: ast.ClassDef) -> Class:
    """Return what a class is made of."""
    methods = [child for child in node.body if isinstance(child, Function)]
    members = {method.name for method in methods if not has_no_body(method)}
    for child in node.body:
        targets = child.targets if isinstance(child, ast.Assign) else [getattr(child, "target", None)]
        members |= {target.id for target in targets if isinstance(target, ast.Name)}
    empty = [method.name for method in methods if is_empty(method)]
    bases = tuple(name for name in names_in(node.bases) if name != node.name)  # torch's SGD, of ours
    return Class(node.name, bases, frozenset(members), tuple(empty), "Protocol" in bases)


@cache
def package() -> tuple[list[Class], list[str]]:
    """Return the classes of the package, and the functions without a body."""
    classes, loose = list[Class](), list[str]()
    for path in sorted(PACKAGE.rglob("*.py")):
        found, functions = read(ast.parse(path.read_text(encoding="utf-8")))
        classes += found
        loose += [f"{path.relative_to(PACKAGE)}: {name}" for name in functions]
    return classes, loose


def missing(classes: list[Class]) -> Iterator[str]:
    """Yield each method without a body that a class which none is made from does not have."""
    by_name = {one.name: one for one in classes}
    made_from = {base for one in classes for base in one.bases}

    def above(one: Class, found: dict[str, Class]) -> dict[str, Class]:
        found[one.name] = one
        for base in one.bases:
            if base in by_name and base not in found:
                above(by_name[base], found)
        return found

    for leaf in classes:
        if leaf.name in made_from or leaf.is_protocol:
            continue
        every = above(leaf, {}).values()
        has = {name for one in every for name in one.members}
        for one in every:
            if not one.is_protocol:
                yield from (f"{leaf.name}.{name}" for name in one.empty if name not in has)


def test_no_function_is_without_a_body() -> None:
    assert not package()[1]


def test_every_class_that_is_made_has_the_methods_of_its_interfaces() -> None:
    assert sorted(set(missing(package()[0]))) == []


@pytest.mark.parametrize(("source", "found"), [
    ("class A:\n def f(self): raise NotImplementedError\nclass B(A):\n def g(self): return 1", ["B.f"]),
    ("class A:\n def f(self): raise NotImplementedError\nclass B(A):\n def f(self): return 1", []),
    ("class A:\n def f(self):\n  'Do.'\n  ...", ["A.f"]),
    ("class A:\n def f(self): pass", ["A.f"]),
    ("class A(Protocol):\n def f(self): ...", []),
    ("class A:\n f: int\n def g(self): raise NotImplementedError('use B')", []),
])
def test_a_method_that_is_left_out_is_found(source: str, found: list[str]) -> None:
    assert list(missing(read(ast.parse(source))[0])) == found


def test_a_function_without_a_body_is_found() -> None:
    assert read(ast.parse("def f():\n 'Do.'\n pass\n@overload\ndef g(): ..."))[1] == ["f"]
