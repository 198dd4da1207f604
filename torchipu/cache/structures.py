"""Structures of nested values as JSON data, and back; classes are those that the program has registered already."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree as pytree


def structure_to_data(spec: pytree.TreeSpec) -> list[Any]:
    """Return a structure as JSON data: for each node the class, what it holds beside its members, and these.

    Raises:
        TypeError: A node holds more than texts and numbers.
    """
    if spec.is_leaf():
        return []
    context = spec._context
    is_keys = isinstance(context, (list, tuple)) and all(isinstance(key, (str, int)) for key in context)
    if context is not None and not is_keys:
        raise TypeError(f"values within a {spec.type.__qualname__} have a structure that is not cached")
    children = [structure_to_data(child) for child in spec._children]
    return [_name(spec.type), type(context).__name__, None if context is None else list(context), children]


def structure_from_data(data: Any) -> pytree.TreeSpec:
    """Return the structure that `structure_to_data` has written.

    Raises:
        ValueError: A class is not registered in this process.
    """
    if not data:
        return pytree.tree_structure(0)
    name, kind, context, children = data
    known = {_name(one): one for one in pytree.SUPPORTED_NODES}
    if name not in known or kind not in ("NoneType", "list", "tuple"):
        raise ValueError(f"results of class {name} are not known here")
    held = tuple(context) if kind == "tuple" else context
    return pytree.TreeSpec(known[name], held, [structure_from_data(child) for child in children])


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
