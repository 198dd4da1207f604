"""What a graph computes of constants, where torch knew at capture what that is: places of a mask, distinct values.

Such a call has a result of a size that values decide, and so no record; its result is a constant of the program
instead. Whatever else depends on constants alone is computed by the program.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.known_constants import LARGEST

aten = torch.ops.aten

INDEXED = frozenset({
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default,
})
"""Calls whose second argument is a list of places or masks."""
MASKS = (torch.bool, torch.uint8)


def fold_constants(module: GraphModule) -> None:
    """Put constants in the place of known masks, and of calls whose result has a size that known values decide.

    Args:
        module: Functional ATen graph.
    """
    if not any(_asks(node) for node in module.graph.nodes):
        return
    known = _Known(module)
    for node in list(module.graph.nodes):
        if not _asks(node):
            continue
        if node.target in INDEXED:
            _fold_masks(module, node, known)
        else:
            _fold_results(module, node, known)


def _asks(node: Node) -> bool:
    """Whether a call takes a mask, or has a result of a size that values decide."""
    if node.target in INDEXED:
        return any(map(_is_mask, node.args[1]))  # type: ignore[arg-type]
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.dynamic_output_shape in node.target.tags


def _is_mask(index: Any) -> bool:
    value = index.meta.get("val") if isinstance(index, Node) else None
    return isinstance(value, Tensor) and value.dtype in MASKS


class _Known:
    """The values of what a graph computes of constants alone.

    Args:
        module: The graph.
    """

    def __init__(self, module: GraphModule) -> None:
        self.values: dict[Node, Any] = {}
        with _disable_current_modes():
            for node in module.graph.nodes:
                if node.op == "get_attr":
                    value = getattr(module, str(node.target), None)
                    if isinstance(value, Tensor) and not is_fake(value):
                        self.values[node] = value
                elif self._is_computed(node):
                    self.values[node] = node.target(*self.of(node.args), **self.of(node.kwargs))

    def of(self, arguments: Any) -> Any:
        """Return arguments with the values of nodes."""
        return map_arg(arguments, self.values.__getitem__)

    def _is_computed(self, node: Node) -> bool:
        if any(operand not in self.values for operand in node.all_input_nodes):
            return False
        if node.target is operator.getitem:
            return True
        if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
            return False
        made = pytree.tree_leaves(node.meta.get("val"))
        is_small = all(isinstance(one, Tensor) and one.device.type == "cpu" and one.numel() <= LARGEST for one in made)
        return bool(made) and is_small and torch.Tag.nondeterministic_seeded not in node.target.tags


def _fold_masks(module: GraphModule, node: Node, known: _Known) -> None:
    """Give an index the places of a mask, one tensor for each dimension of it."""
    masks: Sequence[Any] = node.args[1]  # type: ignore[assignment]
    places: list[Any] = []
    for mask in masks:
        if not _is_mask(mask) or mask not in known.values:
            places.append(mask)
            continue
        with _disable_current_modes():
            found = known.values[mask].nonzero(as_tuple=True)
        places.extend(_constant(module, node, one, mask.name) for one in found)
    if len(places) != len(masks) or any(one is not mask for one, mask in zip(places, masks, strict=True)):
        node.args = (node.args[0], places, *node.args[2:])
        for mask in masks:
            _drop_unread(mask)


def _fold_results(module: GraphModule, node: Node, known: _Known) -> None:
    """Replace a call, or each of its results that is read, by what is known of it."""
    if node not in known.values:
        return
    readers = [node] if isinstance(known.values[node], Tensor) else list(node.users)
    for reader in readers:
        reader.replace_all_uses_with(_constant(module, reader, known.values[reader], reader.name))
        _drop_unread(reader)


def _constant(module: GraphModule, before: Node, values: Tensor, name: str) -> Node:
    """Return a node of values, in front of another one and of the same line and block."""
    held, count = f"known_{name}", 0
    while hasattr(module, held):
        count += 1
        held = f"known_{name}_{count}"
    with _disable_current_modes():
        module.register_buffer(held, values.clone(memory_format=torch.contiguous_format))
    with module.graph.inserting_before(before):
        node = module.graph.get_attr(held)
    node.meta = {**before.meta, "val": getattr(module, held)}
    return node


def _drop_unread(node: Any) -> None:
    """Remove what nothing reads any more, from its reader to what it reads."""
    if not isinstance(node, Node) or node.users or node.op not in ("call_function", "get_attr"):
        return
    operands = node.all_input_nodes
    node.graph.erase_node(node)
    for operand in operands:
        _drop_unread(operand)
