"""Operators of the user's that write into their arguments become calls that return what they would have written.

AOT autograd wraps each call of one: the wrapper is told which tensors, or which views of these, are written into, and
returns them as they are afterwards beside the results.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchipu.capture.fx_source import source_of
from torchipu.errors import UnsupportedOpError
from torchipu.host import functional_calls

aten = torch.ops.aten
_ABOUT = ("_base_index", "_alias", "_slice_dim", "_slice_start", "_slice_end", "_size", "_stride", "_storage_offset")
"""What the wrapper is told of each argument that is written into, behind its name."""


def unwrap_mutation(module: GraphModule, node: Node) -> None:
    """Turn a wrapped call of an operator that writes into a call of one that does not.

    Raises:
        UnsupportedOpError: It writes into a list of tensors, into none that was given, or twice into one.
    """
    overload: Any = node.args[0]
    bases: Sequence[Node] = node.kwargs["_all_bases"]  # type: ignore[assignment]
    written = functional_calls.written_by(overload)
    places = {name: node.kwargs.get(f"_{name}_base_index") for name in written}
    if None in places.values() or len(set(places.values())) < len(places):
        raise UnsupportedOpError(
            f"{overload}: it writes into a list of tensors, or into one tensor by two arguments",
            op=node.format_node(), source=source_of(node),
            remedy="give it one tensor for each argument that it writes into, and no two of the same memory",
        )
    results = [node for node in node.users if node.target is operator.getitem]
    with module.graph.inserting_before(node):
        parts = {name: _part(module, node, name, bases[places[name]]) for name in written}  # type: ignore[index]
        made = _call(module, node, overload, parts)
        count = len(overload._schema.returns)
        after = {
            places[name]: _put_back(module, node, name, bases[places[name]], made[count + number])  # type: ignore[index]
            for number, name in enumerate(written)
        }
    for result in results:
        place: Any = result.args[1]
        behind = place - max(1, count)  # of an operator without results the first one is None
        found = made[place] if behind < 0 else after.get(behind, bases[behind])
        result.replace_all_uses_with(found)
        module.graph.erase_node(result)
    module.graph.erase_node(node)


def _call(module: GraphModule, node: Node, overload: Any, parts: dict[str, Node]) -> list[Node]:
    """Append the call; return each of its results."""
    given = {**node.kwargs, **parts}
    arguments = overload._schema.arguments
    args = [given[one.name] for one in arguments if not one.kwarg_only and one.name in given]
    kwargs = {one.name: given[one.name] for one in arguments if one.kwarg_only and one.name in given}
    called = functional_calls.operator(functional_calls.target_of(overload))
    call = module.graph.call_function(called, tuple(args), kwargs)
    count = len(overload._schema.returns)
    values = [*node.meta["val"][:count], *(part.meta["val"] for part in parts.values())]
    call.meta = {**node.meta, "val": tuple(values) if len(values) > 1 else values[0]}
    if len(values) == 1:
        return [call]
    found = []
    for place, value in enumerate(values):
        found.append(module.graph.call_function(operator.getitem, (call, place)))
        found[-1].meta = {**node.meta, "val": value}
    return found


def _about(node: Node, name: str) -> dict[str, Any]:
    """Return what the wrapper is told of an argument."""
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
