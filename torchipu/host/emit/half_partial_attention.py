"""Host steps of attention with half partials: the products and the softmax one after another, as the device runs them.

The scores of all heads are laid out in memory. What a product takes is a half, as on the device: probabilities, and the
gradients of scores, are rounded before they are multiplied. Each product draws random bits of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torchipu._kernels.table.control import FORK
from torchipu._kernels.table.convert import Stored
from torchipu._kernels.table.reduce import LOGSUMEXP_ROWS, Folding, LogsumexpRowsInts
from torchipu._kernels.table.softmax import SOFTMAX_ROWS, SoftmaxMode, SoftmaxRowsInts
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.half_partials import Partials, emit_half_product
from torchipu.host.emit.reduce import emit_reduction
from torchipu.host.emit.softmax import GRAIN_ELEMENTS
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import Chain, Value
from torchipu.optable.codelet import Product
from torchipu.optable.emission import emit_results
from torchipu.optable.host_tensor import HostTensor, Rounding, contiguous_strides
from torchipu.optable.planner import HostPlanner

Sizes = tuple[int, int, int, int]


def is_served(op: Op) -> bool:
    """Whether an op's partials are half."""
    return op.attrs.get("partials") == "half" and all(
        tensor.dtype is DType.HALF for tensor in (*op.inputs[:3], op.outputs[0])
    )


def forward_products(heads: int, queries: int, keys: int, width: int) -> tuple[Product, ...]:
    """Return the products of the scores and of the results."""
    return Product(heads, queries, width, keys), Product(heads, queries, keys, width)


def backward_products(heads: int, queries: int, keys: int, width: int) -> tuple[Product, ...]:
    """Return the products of the scores, of the gradients of probabilities, values, queries and keys."""
    scores = Product(heads, queries, width, keys)
    return (
        scores, scores, Product(heads, keys, queries, width), Product(heads, queries, keys, width),
        Product(heads, keys, queries, width),
    )


class _Draws:
    """The roundings of what lies between an op's operands and its results, each with random bits of its own."""

    def __init__(self, op: Op, plan: HostPlanner) -> None:
        self.plan, self.made = plan, 0
        self.rounding = plan.rounding(op, op.outputs[0])
        self.tiles = op.attrs.get("summand_tiles")

    def one(self) -> Rounding:
        """Return the next rounding."""
        self.made += 1
        if self.rounding.random is None:
            return self.rounding
        state, number = self.plan.scratch((4,), DType.LONG), self.plan.constant([self.made], DType.LONG)
        self.plan.step(FORK, [state], [self.rounding.random, number])
        return replace(self.rounding, random=state)

    def partials(self, product: int) -> Partials:
        """Return how the partials of one of the op's products come about."""
        tiles = self.tiles[product] if isinstance(self.tiles, (tuple, list)) else 1
        return Partials(self.one(), tiles)


def _matrices(held: HostTensor) -> HostTensor:
    """Show [B, H, M, N], row-major, as [B x H, M, N]."""
    batches, heads, rows, columns = held.shape
    shape = (batches * heads, rows, columns)
    return HostTensor(held.buffer, held.offset, shape, contiguous_strides(shape), held.dtype)


def _turned(held: HostTensor) -> HostTensor:
    """Show each matrix of several transposed."""
    count, rows, columns = held.shape
    first, row, column = held.strides
    return HostTensor(held.buffer, held.offset, (count, columns, rows), (first, column, row), held.dtype)


def _each_head(plan: HostPlanner, held: HostTensor, heads: int) -> HostTensor:
    """Return [B x heads, M, N], row-major: key heads that several query heads share are repeated."""
    batches, given, rows, columns = held.shape
    fresh = plan.scratch((batches, heads, rows, columns))
    shape, steps = (batches, given, heads // given, rows, columns), held.strides
    target = HostTensor(fresh.buffer, fresh.offset, shape, contiguous_strides(shape), fresh.dtype)
    emit_copy(plan, target, HostTensor(held.buffer, held.offset, shape, (*steps[:2], 0, *steps[2:]), held.dtype))
    return _matrices(fresh)


def _scores(
    op: Op, plan: HostPlanner, draws: _Draws, query: HostTensor, key: HostTensor, mask: HostTensor | None, sizes: Sizes,
    scale: float,
) -> HostTensor:
    """Emit the scaled and masked scores, [B x H, queries, keys]."""
    batches, heads, queries, _ = sizes
    keys = key.shape[1]
    products = plan.scratch((batches * heads, queries, keys))
    emit_half_product(plan, products, query, _turned(key), draws.partials(0), alpha=scale)
    if mask is None and not op.attrs["is_causal"]:
        return products
    shape = (batches, heads, queries, keys)
    held = HostTensor(products.buffer, products.offset, shape, contiguous_strides(shape), DType.FLOAT)
    masked = plan.scratch(products.shape)
    chain = Chain(plan, shape)
    value = chain.load(held)
    if mask is not None:
        value = chain.run("f_add", value, chain.load(mask))
    if op.attrs["is_causal"]:
        rows = plan.constant(list(range(queries)), DType.LONG)
        columns = plan.constant(list(range(keys)), DType.LONG)
        down = chain.load(HostTensor(rows.buffer, 0, (queries, 1), (1, 0), DType.LONG))
        is_later = chain.run("b_lt_l", down, chain.load(columns))
        value = chain.run("f_where", is_later, chain.scalar(float("-inf"), "f"), value)
    stored = HostTensor(masked.buffer, masked.offset, shape, contiguous_strides(shape), DType.FLOAT)
    emit_results(chain, [(value, stored)])
    return masked


def _rounded(
    plan: HostPlanner, shape: Sequence[int], rounding: Rounding, make: Callable[[Chain], Value],
) -> HostTensor:
    """Emit a value that a chain makes, as halves hold it, to floats."""
    held = plan.scratch(shape)
    chain = Chain(plan, shape)
    emit_results(chain, [(chain.round(make(chain), rounding), held)])
    return held


def _row(held: HostTensor, count: int, queries: int) -> HostTensor:
    """Show a number for each row of scores."""
    return HostTensor(held.buffer, held.offset, (count, queries, 1), (queries, 1, 0), held.dtype)


def emit_forward(
    op: Op, plan: HostPlanner, operands: Sequence[HostTensor], mask: HostTensor | None, outputs: Sequence[HostTensor],
    scale: float,
) -> None:
    """Emit attention.

    Args:
        op: The op.
        plan: The planner.
        operands: Query, key and value, [B, H, positions, width], float.
        mask: Over all scores, or None.
        outputs: Results, and the logarithms of the sums of the scores' exponentials, row-major.
        scale: Of the scores.
    """
    batches, heads, queries, width = operands[0].shape
    draws = _Draws(op, plan)
    query, key, value = (_each_head(plan, held, heads) for held in operands)
    scores = _scores(op, plan, draws, query, key, mask, (batches, heads, queries, width), scale)
    rows, keys = batches * heads * queries, key.shape[1]
    grain = max(1, GRAIN_ELEMENTS // max(1, keys))
    likely = plan.scratch(scores.shape)
    ints = SoftmaxRowsInts(keys, SoftmaxMode.SAFE, stored=Stored.FLOATS)
    plan.step(SOFTMAX_ROWS, [likely], [scores], ints=ints, items=rows, grain=grain)
    plan.step(LOGSUMEXP_ROWS, [outputs[1]], [scores], ints=LogsumexpRowsInts(keys), items=rows, grain=grain,
              writes=[Blocks.of((rows,), (1,))])
    halves = _rounded(plan, scores.shape, draws.one(), lambda chain: chain.load(likely))
    emit_half_product(plan, _matrices(outputs[0]), halves, value, draws.partials(1))


def emit_backward(
    op: Op, plan: HostPlanner, operands: Sequence[HostTensor], mask: HostTensor | None, saved: Sequence[HostTensor],
    outputs: Sequence[HostTensor], scale: float,
) -> None:
    """Emit the gradients of query, key and value.

    Args:
        op: The op.
        plan: The planner.
        operands: Query, key and value, [B, H, positions, width], float.
        mask: Over all scores, or None.
        saved: Gradient of the results, the results, and the logarithms of the sums, row-major.
        outputs: The gradients, row-major.
        scale: Of the scores.
    """
    batches, heads, queries, width = operands[0].shape
    draws, count = _Draws(op, plan), batches * heads
    query, key, value = (_each_head(plan, held, heads) for held in operands)
    upstream, results = (_matrices(held) for held in saved[:2])
    scores = _scores(op, plan, draws, query, key, mask, (batches, heads, queries, width), scale)
    sums = _row(saved[2], count, queries)

    def likely(chain: Chain) -> Value:
        exact = chain.run("f_exp", chain.run("f_sub", chain.load(scores), chain.load(sums)))
        is_empty = chain.run("b_eq_f", chain.load(sums), chain.scalar(float("-inf"), "f"))
        return chain.run("f_where", is_empty, chain.scalar(0.0, "f"), exact)

    halves = _rounded(plan, scores.shape, draws.one(), likely)
    of_likely, products = plan.scratch(scores.shape), plan.scratch((count, queries, width))
    emit_half_product(plan, of_likely, upstream, _turned(value), draws.partials(1))
    chain = Chain(plan, products.shape)
    emit_results(chain, [(chain.run("f_mul", chain.load(upstream), chain.load(results)), products)])
    shares = plan.scratch((count, queries))
    emit_reduction(plan, shares, products, (2,), Folding.SUM)

    def of_scores(chain: Chain) -> Value:
        apart = chain.run("f_sub", chain.load(of_likely), chain.load(_row(shares, count, queries)))
        return chain.run("f_mul", chain.run("f_mul", likely(chain), apart), chain.scalar(scale, "f"))

    slopes = _rounded(plan, scores.shape, draws.one(), of_scores)
    emit_half_product(plan, _matrices(outputs[0]), slopes, key, draws.partials(3))
    for place, left, right, product in ((1, slopes, query, 4), (2, halves, upstream, 2)):
        _emit_of_keys(plan, outputs[place], left, right, heads, draws.partials(product))


def _emit_of_keys(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, heads: int, partials: Partials,
) -> None:
    """Emit the gradient of keys or values; query heads that share one add theirs up."""
    batches, given, keys, width = out.shape
    if given == heads:
        emit_half_product(plan, _matrices(out), _turned(left), right, partials)
        return
    apart = plan.scratch((batches * heads, keys, width))
    emit_half_product(plan, apart, _turned(left), right, partials)
    shape = (batches * given, heads // given, keys * width)
    emit_reduction(plan, out, replace(apart, shape=shape, strides=contiguous_strides(shape)), (1,), Folding.SUM)
