"""Operators of the user's that write into their arguments become calls that return what they would have written.

AOT autograd wraps each call of one: the wrapper is told which tensors, or which views of these, are written into, and
returns them as they are afterwards beside the results.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.fx_source import source_of
from torchipu.errors import UnsupportedOpError
from torchipu.host import functional_calls

aten = torch.ops.aten
_ABOUT = ("_base_index", "_alias", "_slice_dim", "_slice_start", "_slice_end", "_size", "_stride", "_storage_offset")
"""What the wrapper is told of each argument that is written into, behind its name."""


def unwrap_mutation(module: GraphModule, node: Node) -> None:
    """Turn a wrapped call of an operator that writes into a call of one that does not.

    Raises:
        UnsupportedOpError: It writes twice into one place, as far as is known.
    """
    overload: Any = node.args[0]
    bases: Sequence[Node] = node.kwargs["_all_bases"]  # type: ignore[assignment]
    written = {name: _keys(node, name) for name in functional_calls.written_by(overload)}
    keys = [key for argument in written.values() for key in (argument if isinstance(argument, list) else [argument])]
    keys = [key for key in keys if key is not None]
    places: dict[str, int] = {key: node.kwargs[f"_{key}_base_index"] for key in keys}  # type: ignore[misc]
    _refuse_overlaps(node, places, bases)
    results = [node for node in node.users if node.target is operator.getitem]
    count = len(overload._schema.returns)
    after: dict[int, Node] = {}
    with module.graph.inserting_before(node):
        parts = {key: _part(module, node, key, bases[place]) for key, place in places.items()}
        made = _call(module, node, overload, {name: _given(key, parts) for name, key in written.items()})
        for (key, place), value in zip(places.items(), made[count:], strict=True):
            after[place] = _put_back(module, node, key, after.get(place, bases[place]), value)
    for result in results:
        number: Any = result.args[1]
        behind = number - max(1, count)  # of an operator without results the first one is None
        found = made[number] if behind < 0 else after.get(behind, bases[behind])
        result.replace_all_uses_with(found)
        module.graph.erase_node(result)
    module.graph.erase_node(node)


def _keys(node: Node, name: str) -> Any:
    """Return by what the wrapper speaks of an argument: a name, names of a list's tensors, None for what is None."""
    length = node.kwargs.get(f"_{name}_length")
    if length is not None:
        return [_keys(node, f"{name}_{place}") for place in range(length)]  # type: ignore[arg-type]
    return name if node.kwargs.get(f"_{name}_base_index") is not None else None


def _given(key: Any, parts: dict[str, Node]) -> Any:
    """Return the tensor, the list of tensors or None that an argument is."""
    if isinstance(key, list):
        return [_given(one, parts) for one in key]
    return None if key is None else parts[key]


def _refuse_overlaps(node: Node, places: dict[str, int], bases: Sequence[Node]) -> None:
    """Raise UnsupportedOpError where two of the tensors that are written may share an element."""
    for (one, place), (other, behind) in itertools.combinations(places.items(), 2):
        if place == behind and not _are_apart(_about(node, one), _about(node, other), bases[place].meta["val"]):
            raise UnsupportedOpError(
                f"{node.args[0]}: it writes into one tensor by two arguments, {one} and {other}, and they may overlap",
                op=node.format_node(), source=source_of(node),
                remedy="give it tensors, or parts of one, of which no two share an element",
            )


def _are_apart(one: dict[str, Any], other: dict[str, Any], base: Tensor) -> bool:
    """Whether two parts of a tensor are known to share no element, in a graph of any size for all sizes."""
    if "_slice_dim" in one and one["_slice_dim"] == other.get("_slice_dim"):
        return any(
            statically_known_true(first["_slice_end"] <= second["_slice_start"])
            for first, second in ((one, other), (other, one))
        )
    views = [_view_of(one), _view_of(other)]
    numbers = pytree.tree_leaves((list(base.shape), list(base.stride()), one, other))
    if None in views or any(isinstance(number, torch.SymInt) for number in numbers):
        return False
    if not base.numel():
        return True
    extent = 1 + sum((size - 1) * stride for size, stride in zip(base.shape, base.stride(), strict=True))
    with no_dispatch(), _disable_current_modes():
        seen = torch.zeros(extent, dtype=torch.bool).as_strided(base.shape, base.stride())
        first, second = (view[0](seen, *view[2]) for view in views if view is not None)
        first.fill_(True)
        return not bool(second.any())


def _call(module: GraphModule, node: Node, overload: Any, parts: dict[str, Any]) -> list[Node]:
    """Append the call; return each of its results, and behind them each tensor that was written."""
    given = {**node.kwargs, **parts}
    arguments = overload._schema.arguments
    args = [given[one.name] for one in arguments if not one.kwarg_only and one.name in given]
    kwargs = {one.name: given[one.name] for one in arguments if one.kwarg_only and one.name in given}
    written = {name: [one for one in pytree.tree_leaves(part) if one is not None] for name, part in parts.items()}
    count = len(overload._schema.returns)
    leaves = [part.meta["val"] for tensors in written.values() for part in tensors]
    values = [*node.meta["val"][:count], *leaves]
    if not values:
        return []
    target = functional_calls.target_of(overload, [len(tensors) for tensors in written.values()])
    call = module.graph.call_function(functional_calls.operator(target), tuple(args), kwargs)
    call.meta = {**node.meta, "val": tuple(values) if len(values) > 1 else values[0]}
    if len(values) == 1:
        return [call]
    found = []
    for place, value in enumerate(values):
        found.append(module.graph.call_function(operator.getitem, (call, place)))
        found[-1].meta = {**node.meta, "val": value}
    return found


def _about(node: Node, name: str) -> dict[str, Any]:
    """Return what the wrapper is told of a tensor that is written."""
    return {what: node.kwargs[f"_{name}{what}"] for what in _ABOUT if f"_{name}{what}" in node.kwargs}


def _view_of(about: dict[str, Any]) -> tuple[Any, Any, tuple[Any, ...]] | None:
    """Return what shows a part of a tensor, what writes one into it, and the arguments of both; None for all of it."""
    if "_slice_dim" in about:
        return aten.slice.Tensor, aten.slice_scatter.default, (
            about["_slice_dim"], about["_slice_start"], about["_slice_end"],
        )
    if "_size" in about:
        return aten.as_strided.default, aten.as_strided_scatter.default, (
            about["_size"], about["_stride"], about["_storage_offset"],
        )
    return None


def _part(module: GraphModule, node: Node, name: str, base: Node) -> Node:
    """Return the tensor, or the view of one, that an argument is."""
    view = _view_of(_about(node, name))
    if view is None:
        return base
    shows, _, arguments = view
    part = module.graph.call_function(shows, (base, *arguments))
    part.meta = {**node.meta, "val": shows(base.meta["val"], *arguments)}
    return part


def _put_back(module: GraphModule, node: Node, name: str, base: Node, value: Node) -> Node:
    """Return a tensor with what was written into it, or into a view of it."""
    view = _view_of(_about(node, name))
    if view is None:
        return value
    _, writes, arguments = view
    whole = module.graph.call_function(writes, (base, value, *arguments))
    whole.meta = {**node.meta, "val": base.meta["val"]}
    return whole
