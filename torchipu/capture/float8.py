"""Floats of 8 bits in a graph: bytes that are moved, and cast; there is no arithmetic on them, as on the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torchipu.capture.fx_source import source_of
from torchipu.errors import UnsupportedOpError
from torchipu.fp8.torch_types import NAMES

aten = torch.ops.aten
ENCODE, DECODE = torch.ops.torchipu.float8_encode.default, torch.ops.torchipu.float8_decode.default
MOVES = frozenset({
    aten.alias, aten.as_strided, aten.cat, aten.clone, aten.copy, aten.detach, aten.diagonal, aten.embedding,
    aten.expand, aten.flip, aten.gather, aten.index, aten.index_select, aten.lift_fresh, aten.lift_fresh_copy,
    aten.permute, aten.repeat, aten.roll, aten.select, aten.select_scatter, aten.slice, aten.slice_scatter, aten.split,
    aten.split_with_sizes, aten.squeeze, aten.stack, aten.t, aten.transpose, aten.unbind, aten.unsqueeze,
    aten._unsafe_view, aten.view, aten.where,
})
"""What moves elements and never reads them: it does the same with bytes."""
MAKERS = frozenset({
    aten.empty, aten.empty_like, aten.full, aten.full_like, aten.new_empty, aten.new_full, aten.new_ones,
    aten.new_zeros, aten.ones, aten.ones_like, aten.zeros, aten.zeros_like,
})
"""What makes elements of a number."""


def scaled_mm(
    self: Tensor, mat2: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Tensor:
    """Multiply as `torch._scaled_mm` does: both are widened to floats, for sums of floats.

    The matrix unit's own products of bytes have sums of halves: `torchipu.fp8.matmul`.
    """
    product = (self.float() @ mat2.float()) * scale_a * scale_b
    if bias is not None:
        product = product + bias
    dtype = out_dtype or self.dtype
    if scale_result is not None and dtype in NAMES:
        product = product * scale_result
    return product.to(dtype)


def hold_bytes(module: GraphModule) -> None:
    """Turn casts from and to floats of 8 bits into casts of bytes, within a graph.

    Raises:
        UnsupportedOpError: Something computes with them, or asks for another type of 8 bits.
    """
    for node in list(module.graph.nodes):
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if _is_float8(node.meta.get("val")) or any(map(_is_float8, _values(node.all_input_nodes))):
            _hold(module, node)


def _values(nodes: Sequence[Node]) -> list[Any]:
    return [node.meta.get("val") for node in nodes]


def _is_float8(value: Any) -> bool:
    members = value if isinstance(value, (list, tuple)) else [value]
    return any(isinstance(member, Tensor) and member.dtype in NAMES for member in members)


def _hold(module: GraphModule, node: Node) -> None:
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    result = node.meta["val"]
    if node.target is aten._to_copy.default:
        _cast(module, node, result.dtype)
    elif node.target is aten.view.dtype:
        if {result.dtype, *(value.dtype for value in _values(node.all_input_nodes))} <= {torch.uint8, *NAMES}:
            node.target, node.args, node.kwargs = aten.alias.default, node.args[:1], {}
    elif packet in MAKERS:
        dtype = result.dtype
        node.kwargs = {**node.kwargs, "dtype": torch.float32}
        node.meta = {**node.meta, "val": result.to(torch.float32)}
        with module.graph.inserting_after(node):
            encoded = _call(module, ENCODE, (node, NAMES[dtype]), result, node)
        node.replace_all_uses_with(encoded, lambda user: user is not encoded)
    elif packet not in MOVES:
        types = [value.dtype for value in [result, *_values(node.all_input_nodes)] if _is_float8(value)]
        raise UnsupportedOpError(
            f"{node.target}: there is no arithmetic on {types[0]}", op=node.format_node(), source=source_of(node),
            remedy="cast to float16 or float32 first, and the result back",
        )
    elif packet is aten.copy and not all(map(_is_float8, _values(node.all_input_nodes))):
        given = node.args[1]
        assert isinstance(given, Node)
        with module.graph.inserting_before(node):
            cast = _call(module, aten._to_copy.default, (given,), given.meta["val"].to(result.dtype), node)
        cast.kwargs = {"dtype": result.dtype}
        _cast(module, cast, result.dtype)
        node.args = (node.args[0], cast)


def _cast(module: GraphModule, node: Node, wanted: torch.dtype) -> None:
    """Cast by way of a float, where one side is neither a float nor of 8 bits, or both are."""
    given = node.args[0]
    assert isinstance(given, Node)
    value = given.meta["val"]
    if value.dtype == wanted:
        node.target, node.args, node.kwargs = aten.clone.default, (given,), {}
        return
    if value.dtype in NAMES:
        is_last = wanted.is_floating_point and wanted not in NAMES
        exact = torch.float16 if wanted == torch.float16 else torch.float32
        arguments = (given, NAMES[value.dtype], exact)
        if is_last:
            node.target, node.args, node.kwargs = DECODE, arguments, {}
            return
        with module.graph.inserting_before(node):
            given = _call(module, DECODE, arguments, value.to(exact), node)
        node.args = (given,)
    elif not value.dtype.is_floating_point:
        with module.graph.inserting_before(node):
            made = _call(module, aten._to_copy.default, (given,), value.to(torch.float32), node)
        made.kwargs = {"dtype": torch.float32}
        given = made
    if wanted in NAMES:
        node.target, node.args, node.kwargs = ENCODE, (given, NAMES[wanted]), {}


def _call(module: GraphModule, target: Any, args: tuple[Any, ...], value: Tensor, like: Node) -> Node:
    made = module.graph.call_function(target, args)
    made.meta = {**like.meta, "val": value}
    return made
