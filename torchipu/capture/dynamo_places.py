"""What Dynamo knows of places where a model keeps things: what is there, what it puts there, whether it was read."""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Iterator
from typing import Any

from torch._dynamo.source import (
    AttrSource,
    ClosureSource,
    DictGetItemSource,
    GetItemSource,
    GlobalSource,
    LocalSource,
    TypeSource,
)
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.lists import BaseListVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch.fx import Node

MISSING = object()
"""What stands for a value that is not there, or not known."""
_DRAWS = re.compile("rand|bernoulli|multinomial|normal|uniform|dropout|poisson|exponential|cauchy|geometric")
_IN_PLACE = frozenset({
    "iadd", "isub", "imul", "imatmul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift",
    "irshift",
})
"""Functions of `operator` that write into their first operand."""


def register() -> None:
    """Let Dynamo see whether a `torch.nn.Buffer` is saved, which ``self.buffer += x`` asks of it.

    It knows no attribute of a tensor that is one of an object's own, and takes what it does not know for no condition.
    """
    TensorVariable.method_attr_persistent = _persistent  # type: ignore[attr-defined]


def _persistent(variable: TensorVariable, tx: Any) -> VariableTracker | None:
    with contextlib.suppress(Exception):  # a tensor of another place
        return ConstantVariable.create(_found_at(tx.output, source_of(variable)).persistent)
    return None


def name_of(source: Any) -> str:
    """Return the expression of a place."""
    return str(source.name() if callable(source.name) else source.name)


def has_name(source: Any) -> bool:
    """Whether a place is written in some way: the stack of torch's modes, which `create_block_mask` changes, is not."""
    try:
        name_of(source)
    except NotImplementedError:
        return False
    return True


def held_at(graph: Any, variable: Any) -> Any:
    """Return the object that a variable stands for, or MISSING."""
    try:
        return _found_at(graph, variable.source)
    except Exception:  # a place of another form; a property that raises
        return vars(variable).get("value", MISSING)


def _found_at(graph: Any, source: Any) -> Any:
    """Return what is at a place; releases of torch before 2.13 have nothing that does."""
    if isinstance(source, LocalSource):
        return graph.root_tx.f_locals[source.local_name]
    if isinstance(source, GlobalSource):
        return graph.root_tx.f_globals[source.global_name]
    held = _found_at(graph, source.base)
    if isinstance(source, TypeSource):
        return type(held)
    if isinstance(source, ClosureSource):
        return held.__closure__
    if isinstance(source, AttrSource):
        return getattr(held, source.member)
    if isinstance(source, (GetItemSource, DictGetItemSource)):
        return held[source.index]
    return held


def source_of(value: Any) -> Any:
    """Return the place that something comes from, a tensor that was written in place too; else None."""
    source = getattr(value, "source", None)
    if source is not None or not isinstance(value, TensorVariable):
        return source
    node: Node = value.as_proxy().node
    while node.args and isinstance(node.args[0], Node):
        called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if called not in _IN_PLACE and not (called.endswith("_") and not called.endswith("__")):
            break
        node = node.args[0]
    return getattr(node.meta.get("grapharg"), "source", None)


def attribute_of(held: Any, name: str) -> Any:
    """Return the value of an attribute, or MISSING."""
    if isinstance(held, types.CellType):
        return held.cell_contents if name == "cell_contents" else MISSING
    return MISSING if held is MISSING else getattr(held, "__dict__", {}).get(name, MISSING)


def cell_name(graph: Any, variable: Any) -> str:
    """Return the name of a variable of an enclosing function."""
    with contextlib.suppress(Exception):  # a place of another form
        function = _found_at(graph, variable.source.base.base)
        return str(function.__code__.co_freevars[variable.source.index])
    return str(variable.local_name or "what is counted there")


def item_of(held: Any, key: Any) -> Any:
    """Return what a container holds at a place, or MISSING."""
    with contextlib.suppress(Exception):
        return held[key]
    return MISSING


def items_of(variable: Any) -> Iterator[tuple[Any, VariableTracker]]:
    """Yield keys or places of a container with what is there."""
    items: Any = vars(variable).get("items")
    if isinstance(items, dict):
        for key, value in items.items():
            tracker: Any = getattr(key, "vt", key)
            if tracker.is_python_constant():
                yield tracker.as_python_constant(), value
    elif isinstance(items, (list, tuple)):
        yield from enumerate(items)


def is_same(before: Any, value: Any, place: str) -> bool:
    """Whether a variable stands for what is there already."""
    source = source_of(value)
    if source is not None and _is_one_place(name_of(source), place):
        return True
    if value.is_python_constant():
        try:
            now = value.as_python_constant()
            return now is before or (type(now) is type(before) and bool(now == before))
        except Exception:  # objects that cannot be compared
            return False
    return False


def _is_one_place(one: str, other: str) -> bool:
    """Whether two expressions say the same place, through an attribute or through what holds it."""
    plain = [re.sub(r"\.__dict__\['(\w+)'\]", r".\1", text) for text in (one, other)]
    return plain[0] == plain[1]


def is_read(graph: Any, place: str) -> bool:
    """Whether the capture depends on what was found at a place."""
    owner, _, name = place.rpartition(".")
    for guard in graph.guards:
        at = guard.name
        if at.startswith(place) and at[len(place) : len(place) + 1] in ("", ".", "["):
            return True
        named = getattr(guard.create_fn, "keywords", None) or {}
        if named.get("attr") == name and at == owner:
            return True
    return False


def is_computed(value: Any) -> bool:
    """Whether something is a tensor that depends on what the graph is given, or on chance; or holds such a one."""
    if isinstance(value, BaseListVariable):
        return any(map(is_computed, value.items))
    if not isinstance(value, TensorVariable):
        return False
    waiting, seen = [value.as_proxy().node], set()
    while waiting:
        node: Node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op in ("placeholder", "get_attr") or _DRAWS.search(str(node.target)):
            return True
        waiting.extend(node.all_input_nodes)
    return False
