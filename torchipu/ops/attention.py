"""Scaled dot-product attention and its gradient, in blocks of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchipu._kernels.table.attention import (
    ATTENTION,
    ATTENTION_BACKWARD,
    QUERIES_AT_ONCE,
    AttentionInts,
    AttentionScalars,
)
from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.reduce import Folding
from torchipu.device.codelets import busiest_elements
from torchipu.device.compute_sets import fits_tile, in_first
from torchipu.device.product_sets import BACKWARD, LAYER_PASS, LEFT, MADE_OPERANDS, RIGHT, UPDATE, layer_vertices
from torchipu.device.reductions import chain_sets
from torchipu.device.tilings import attention as tilings
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.products import Describe
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.device.whole_rows import brought_together
from torchipu.host.emit import half_partial_attention
from torchipu.host.emit.reduce import emit_reduction
from torchipu.ir.graph import Op, Tensor, operand_labels
from torchipu.ir.sizes import least, of_numbers
from torchipu.ir.types import DType
from torchipu.ir.vertices import Tiling
from torchipu.ops.softmax import BACKWARD as SOFTMAX_BACKWARD
from torchipu.ops.softmax import FORWARD, Chain
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Product, Vertices
from torchipu.optable.host_tensor import HostTensor, broadcast, contiguous_strides
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target

KEYS_AT_ONCE = 256
MOST_QUERIES = 256
"""Queries of an item: what they come to, and the packed keys and values of a block, stay in a second-level cache."""
LEAST_ITEMS = 8  # items that keep four threads busy
ROWS_BACKWARD = 56
KEYS_BACKWARD = 128
WHOLE_ROW_BYTES = 1 << 19
"""What blocks of the backward may take, half of a second-level cache, so that a query's weights lie there whole: the
gradient of its softmax is then more exact than from blocks of keys, and takes 3 % longer."""

# --------------------------------------------------------------------------- device side
BOTH = f"{LEFT} {RIGHT}"


def _sizes(op: Op) -> tuple[int, int, int, int]:
    """Heads in all, queries, keys and width."""
    query, key = op.operand("query"), op.operand("key")
    assert query is not None
    assert key is not None
    return query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3]


def _softmax_sets(op: Op, target: Target, chain: Chain, tiling: Tiling | None) -> tuple[Vertices, ...]:
    """Return the sets of a softmax of the scores, or of its gradient, of which the first over all scores does all.

    Both read what a product has made, in rows that are brought together.
    """
    heads, queries, keys, _ = _sizes(op)
    dtype, scores = op.inputs[0].dtype, heads * queries * keys
    mine = busiest_elements(target, scores, target.vector_width(dtype.device_bytes), dtype.device_bytes)
    temporary_bytes = (2 if chain is FORWARD else 3) * mine * dtype.device_bytes
    sets = chain_sets(target, chain, (heads * queries, keys), (1,), dtype)
    acting = next(number for number, one in enumerate(sets) if one.elements == scores)
    return (brought_together(target, (heads * queries, keys), dtype), *(
        replace(one, temporary_bytes=temporary_bytes, tiling=tiling) if number == acting
        else replace(one, tiling=nothing_left if tiling else None)
        for number, one in enumerate(sets)
    ))


class _Products:
    """The products of attention, whose operands other ops have made: projections of tokens, and what is made here.

    Args:
        op: The op.
        target: The machine.
    """

    def __init__(self, op: Op, target: Target) -> None:
        self.op, self.target = op, target
        self.is_tiled = not half_partial_attention.is_served(op)

    def of(
        self, describe: Describe, rows: int, inner: int, columns: int, layer_pass: str = "", *, made: str = BOTH,
    ) -> tuple[Vertices, ...]:
        """Return the compute sets of one product for each head.

        Args:
            describe: Tells which elements meet.
            rows: Of the left factor.
            inner: Summands.
            columns: Of the right factor.
            layer_pass: Which pass it is of the product that it is a gradient of; see `layer_vertices`.
            made: Which operands do not lie as the product takes them, as `MADE_OPERANDS` says it.
        """
        attrs = {**self.op.attrs, MADE_OPERANDS: made}
        op = replace(self.op, attrs={**attrs, LAYER_PASS: layer_pass} if layer_pass else attrs)
        product = Product(_sizes(op)[0], rows, inner, columns)
        return layer_vertices(op, self.target, product, op.inputs[0].dtype, describe if self.is_tiled else None)


def _lower_forward(op: Op, target: Target) -> tuple[Vertices, ...]:
    _, queries, keys, width = _sizes(op)
    products = _Products(op, target)
    sets = (
        *products.of(tilings.scores, queries, width, keys),
        *_softmax_sets(op, target, FORWARD, tilings.softmax if products.is_tiled else None),
        *products.of(tilings.results, queries, keys, width, made=RIGHT),
    )
    return sets if products.is_tiled else _by_heads(op, target, sets)


def _lower_backward(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower as the gradients of attention op by op, whose products are passes of layers; see `torchipu.passes.layers`.

    Keys lie as the scores take them, values as the results do; probabilities and their gradients lie in rows, and are
    turned where rows are not what is added up.
    """
    _, queries, keys, width = _sizes(op)
    products = _Products(op, target)
    sets = (
        *products.of(tilings.scores, queries, width, keys),
        *_softmax_sets(op, target, FORWARD, tilings.softmax_again if products.is_tiled else None),
        *products.of(tilings.gradients, queries, width, keys, BACKWARD),
        *_softmax_sets(op, target, SOFTMAX_BACKWARD, tilings.softmax_gradient if products.is_tiled else None),
        *products.of(tilings.value_gradient, keys, queries, width, UPDATE),
        *products.of(tilings.key_gradient, keys, queries, width, UPDATE),
        *products.of(tilings.query_gradient, queries, keys, width, BACKWARD, made=RIGHT),
    )
    return sets if products.is_tiled else _by_heads(op, target, sets)


def _by_heads(op: Op, target: Target, sets: Sequence[Vertices]) -> tuple[Vertices, ...]:
    """Let vertices have whole heads, where these fit: partials are halves, rounded in the order of the whole sums."""
    query, key = op.needed("query"), op.needed("key")
    shared = query.shape[1] // key.shape[1]
    of_a_head = shared * query.shape[2] * (3 * query.shape[3] + key.shape[2]) + 4 * key.shape[2] * key.shape[3]
    return in_first(sets, _HEADS if fits_tile(target, of_a_head * query.dtype.device_bytes) else None)


def _heads(op: Op) -> Slicing:
    """Return attention as samples, and heads of keys with the heads of queries that share them."""
    batch, key_heads = op.needed("key").shape[:2]
    labels = dict(zip(operand_labels(op), op.inputs, strict=True))
    labels |= {("out" if number == 0 else f"out{number}"): tensor for number, tensor in enumerate(op.outputs)}
    axes = []
    for dim, size in ((0, batch), (1, key_heads)):
        dims = {}
        for label, tensor in labels.items():
            place = dim + len(tensor.shape) - 4 if label == "attn_mask" else dim
            if place >= 0 and (label != "attn_mask" or tensor.shape[place] > 1):  # a mask may be broadcast
                dims[label] = place, tensor.shape[place] // size
        axes.append(Axis(size, dims))
    return Slicing(axes, range(len(op.outputs)))


_HEADS = sliced(_heads)


# --------------------------------------------------------------------------- host side
def _supports(op: Op) -> bool:
    query, key, value, mask = (op.operand(name) for name in ("query", "key", "value", "attn_mask"))
    if query is None or key is None or value is None or len(query.shape) != 4 or 0 in query.shape or 0 in key.shape:
        return False
    heads = query.shape[0] == key.shape[0] and query.shape[1] % key.shape[1] == 0 and query.shape[3] == key.shape[3]
    masked = mask is None or (mask.dtype.is_floating and len(mask.shape) <= 4)
    return heads and key.shape == value.shape and masked and op.number("dropout_p") == 0


def _vectors(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return float storage in which each position's vector is contiguous."""
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    return held if held.strides[3] == 1 or held.shape[3] == 1 else plan.value(tensor, DType.FLOAT)


def _mask(plan: HostPlanner, op: Op, query: HostTensor) -> HostTensor | None:
    """Return the mask over all scores, if there is one, with strides of 0 where it is broadcast."""
    tensor, key = op.operand("attn_mask"), op.operand("key")
    if tensor is None:
        return None
    assert key is not None
    return broadcast(plan.value(tensor, DType.FLOAT, contiguous=False), (*query.shape[:3], key.shape[2]))


def _ints(op: Op, operands: Sequence[HostTensor], mask: HostTensor | None, rows: int, columns: int) -> AttentionInts:
    query, key, value = operands
    batch, heads, queries, width = query.shape
    return AttentionInts(
        batch=batch, heads=heads, queries=queries, keys=key.shape[2], width=width, rows=rows, columns=columns,
        is_causal=bool(op.attrs["is_causal"]), has_mask=mask is not None, query=_strides(query), key=_strides(key),
        value=_strides(value), mask=(0, 0, 0, 0) if mask is None else (*_strides(mask), mask.strides[3]),
    )


def _strides(held: HostTensor) -> tuple[int, int, int]:
    """Return the strides along batch, head and position."""
    batch, head, position = held.strides[:3]
    return batch, head, position


@dataclass(frozen=True, slots=True)
class _Call:
    """Operands of one kernel call: everything, or one batch when several query heads share a key head.

    Attributes:
        operands: Query, key and value, [batch, heads, positions, width].
        mask: Over all scores, or None.
        dense: Row-major operands and results, query-like or key-like, with as many heads as the query.
    """

    operands: tuple[HostTensor, ...]
    mask: HostTensor | None
    dense: tuple[HostTensor, ...]


def _calls(operands: Sequence[HostTensor], mask: HostTensor | None, dense: Sequence[HostTensor]) -> Iterator[_Call]:
    """Split attention with grouped queries: in each call a key head is a batch whose heads are the queries' group."""
    batches, heads = operands[0].shape[:2]
    key_heads = operands[1].shape[1]
    group = heads // key_heads
    if group == 1:
        yield _Call(tuple(operands), mask, tuple(dense))
        return
    for batch in range(batches):
        yield _Call(
            (
                _grouped(operands[0], batch, key_heads, group),
                *(_repeated(operand, batch, group) for operand in operands[1:]),
            ),
            None if mask is None else _grouped(mask, batch, key_heads, group),
            tuple(_grouped(held, batch, key_heads, group) for held in dense),
        )


def _grouped(held: HostTensor, batch: int, key_heads: int, group: int) -> HostTensor:
    """Show one batch of ``[batch, heads, ...]`` as ``[key heads, group, ...]``."""
    first, second, *rest = held.strides
    return HostTensor(
        held.buffer, held.offset + batch * first, (key_heads, group, *held.shape[2:]), (second * group, second, *rest),
        held.dtype,
    )


def _repeated(held: HostTensor, batch: int, group: int) -> HostTensor:
    """Show one batch of ``[batch, key heads, ...]`` as ``[key heads, group, ...]``, the same for the whole group."""
    first, second, *rest = held.strides
    shape = (held.shape[1], group, *held.shape[2:])
    return HostTensor(held.buffer, held.offset + batch * first, shape, (second, 0, *rest), held.dtype)


def _scale(op: Op, width: int) -> float:
    return float(op.number("scale", 1.0 / math.sqrt(width)))


def _operands(op: Op, plan: HostPlanner) -> list[HostTensor]:
    operands = []
    for name in ("query", "key", "value"):
        tensor = op.operand(name)
        assert tensor is not None
        operands.append(_vectors(plan, tensor))
    return operands


@of_numbers
def _rows_of_item(matrices: int, queries: int) -> int:
    """Return the queries of an item, which packs the keys and values of a head: all, where heads keep threads busy."""
    blocks = -(-queries // MOST_QUERIES)
    while matrices * blocks < LEAST_ITEMS and queries > blocks * QUERIES_AT_ONCE:
        blocks += 1
    return -(-queries // max(1, blocks))


def _emit_forward(op: Op, plan: HostPlanner) -> None:
    operands = _operands(op, plan)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    if half_partial_attention.is_served(op):
        mask, scale = _mask(plan, op, operands[0]), _scale(op, operands[0].shape[3])
        half_partial_attention.emit_forward(op, plan, operands, mask, outputs, scale)
        return
    for call in _calls(operands, _mask(plan, op, operands[0]), outputs):
        batch, heads, queries, width = call.operands[0].shape
        rows = _rows_of_item(batch * heads, queries)
        cols = least(KEYS_AT_ONCE, -(-operands[1].shape[2] // 32) * 32)
        plan.step(
            ATTENTION,
            call.dense,
            [*call.operands, *([call.mask] if call.mask else [])],
            ints=_ints(op, call.operands, call.mask, rows, cols),
            scalars=AttentionScalars(_scale(op, width)),
            items=batch * heads * -(-queries // rows),
            scratch_bytes=4 * (
                cols * (width + -(-width // PANEL) * PANEL + QUERIES_AT_ONCE) + rows * width + 2 * rows
            ),
            writes=[
                Blocks.of((batch * heads, queries, width), (1, rows, width)),
                Blocks.of((batch * heads, queries), (1, rows)),
            ],
        )


@of_numbers
def _block_backward(queries: int, keys: int, width: int) -> tuple[int, int]:
    """Return the queries and the keys that the gradients take at a time."""
    rows, cols = min(ROWS_BACKWARD, queries), -(-keys // 32) * 32
    return rows, min(KEYS_BACKWARD, cols) if 8 * cols * (width + rows) > WHOLE_ROW_BYTES else cols


def _emit_backward(op: Op, plan: HostPlanner) -> None:
    operands = _operands(op, plan)
    (batches, heads, queries, width), (_, key_heads, keys, _) = operands[0].shape, operands[1].shape
    saved = []
    for name in ("grad_out", "out", "logsumexp"):
        tensor = op.operand(name)
        assert tensor is not None
        saved.append(plan.value(tensor, DType.FLOAT))
    rows, cols = _block_backward(queries, keys, width)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    if half_partial_attention.is_served(op):
        mask = _mask(plan, op, operands[0])
        half_partial_attention.emit_backward(op, plan, operands, mask, saved, outputs, _scale(op, width))
        return
    # Grouped queries leave gradients of keys and values for each query head; the group is summed below.
    apart = [plan.scratch((batches, heads, keys, width)) for _ in range(2)] if heads != key_heads else outputs[1:]
    for call in _calls(operands, _mask(plan, op, operands[0]), [outputs[0], *apart, *saved]):
        plan.step(
            ATTENTION_BACKWARD,
            call.dense[:3],
            [*call.dense[3:], *call.operands, *([call.mask] if call.mask else [])],
            ints=_ints(op, call.operands, call.mask, rows, cols),
            scalars=AttentionScalars(_scale(op, width)),
            items=(items := call.operands[0].shape[0] * call.operands[0].shape[1]),
            scratch_bytes=4 * (2 * cols * width + 2 * rows * cols + queries),
            writes=[Blocks.rows(items, held) for held in call.dense[:3]],
        )
    if heads == key_heads:
        return
    shape = (batches * key_heads, heads // key_heads, keys * width)
    for held, out in zip(apart, outputs[1:], strict=True):
        members = HostTensor(held.buffer, held.offset, shape, contiguous_strides(shape), DType.FLOAT)
        emit_reduction(plan, out, members, (1,), Folding.SUM)


register(
    OpSpec(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "attention",
        _lower_forward,
        _emit_forward,
        dtypes=FLOATING,
        supports=_supports,
        products=lambda op: half_partial_attention.forward_products(*_sizes(op)),
    ),
    OpSpec(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "attention_backward",
        _lower_backward,
        _emit_backward,
        dtypes=FLOATING,
        supports=_supports,
        products=lambda op: half_partial_attention.backward_products(*_sizes(op)),
    ),
)
