"""Calls of the records that read and write by position: gather, scatter, index, embedding, masks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call

aten = torch.ops.aten


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    yield from gathered(draw)
    yield from scattered(draw)
    yield from put(draw)
    yield from embedded(draw)
    yield from masked(draw)


def gathered(draw: Draw) -> Iterator[Call]:
    """Yield reads; positions may be negative where eager takes them."""
    n, x = draw.batch, draw(draw.batch, 6, 5)
    yield call("gather.default", x, 1, draw.index(6, n, 4, 5))
    yield call("gather.default", x, -1, draw.index(5, n, 6, 2))
    yield call("gather.default", draw(), 0, torch.tensor(0))
    for dim, bound in ((1, 6), (-1, 5)):
        yield call("index_select.default", x, dim, draw.index(bound, 4))
    yield call("index_select.default", x, 1, draw.index(6, 4).int())
    yield call("take.default", draw(6, 5), draw.index(30, n, 3) - 15)
    for name in ("index.Tensor", "_unsafe_index.Tensor"):
        yield call(name, x, [None, draw.index(6, 4)])
        yield call(name, draw(7, 6, 5), [draw.index(7, n, 1), draw.index(6, 4)])
        yield call(name, draw(7, 6, 5), [draw.index(7, n), None, draw.index(5, n)])
    yield call("index.Tensor", draw(7, 6), [draw.index(7, n) - 7])


def scattered(draw: Draw) -> Iterator[Call]:
    """Yield writes by positions; those of `scatter` and `index_copy` are distinct, as eager leaves the rest open."""
    n, x, number = draw.batch, draw(draw.batch, 6, 5), 1.5 if draw.dtype.is_floating_point else 1
    apart = draw.distinct(6, 4).reshape(1, 4, 1).expand(n, 4, 5)
    many, source = draw.index(6, n, 8, 5), draw(n, 8, 5)
    yield call("scatter.value", x, 1, apart, number)
    yield call("scatter.src", x, 1, apart, draw(n, 4, 5))
    for reduce in ("add", "multiply"):
        yield call("scatter.reduce", x, 1, apart, draw(n, 4, 5), reduce=reduce)
        yield call("scatter.value_reduce", x, 1, apart, number, reduce=reduce)
    yield call("scatter_add.default", x, 1, many, source)
    yield call("scatter_add.default", x, -1, draw.index(5, n, 6, 4), draw(n, 6, 4))
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        for included in (True, False):
            yield call("scatter_reduce.two", x, 1, many, source, reduce, include_self=included)
            if reduce != "sum":
                yield call("index_reduce.default", x, 1, draw.index(6, 8), source, reduce, include_self=included)
    yield call("index_add.default", x, 1, draw.index(6, 8), source)
    yield call("index_add.default", x, -1, draw.index(5, 3).int(), draw(n, 6, 3), alpha=2)
    yield call("index_copy.default", x, 1, draw.distinct(6, 4), draw(n, 4, 5))
    yield call("index_fill.int_Scalar", x, 1, draw.index(6, 3), number)
    yield call("index_fill.int_Tensor", x, 1, draw.index(6, 3), draw())


def put(draw: Draw) -> Iterator[Call]:
    """Yield writes by several positions at once."""
    n = draw.batch
    for adds in (False, True):
        flat = draw.distinct(30, 8)
        yield call("put.default", draw(6, 5), flat, draw(8), adds)
        for name in ("index_put.default", "_unsafe_index_put.default"):
            yield call(name, draw(n, 6, 5), [None, draw.distinct(6, 4)], draw(4, 5), adds)
            yield call(name, draw(7, 6, 5), [draw.distinct(7, 4), draw.index(6, 4)], draw(4, 5), adds)
    yield call("index_put.default", draw(4, 5), [draw.index(4, 9)], draw(9, 5), True)


def embedded(draw: Draw) -> Iterator[Call]:
    """Yield embeddings, sums of bags, and their gradients."""
    n, weight, indices = draw.batch, draw(11, 6), draw.index(11, draw.batch, 4)
    yield call("embedding.default", weight, indices)
    yield call("embedding.default", weight, indices.int(), 3)
    yield call("embedding_dense_backward.default", draw(n, 4, 6), indices, 11, -1, False)
    yield call("embedding_renorm.default", weight, draw.index(11, 5), 0.7, 2.0)
    if not draw.dtype.is_floating_point:
        return
    yield call("embedding_dense_backward.default", draw(n, 4, 6), indices, 11, 3, True)
    tokens, offsets = draw.index(11, 9), torch.tensor([0, 2, 2, 7])
    for mode in (0, 1, 2):
        for scores in (None, draw(9)) if mode == 0 else (None,):
            bag = weight, tokens, offsets, False, mode, False, scores, False, 3 if mode else -1
            yield call("_embedding_bag.default", *bag)
            yield call("_embedding_bag_forward_only.default", *bag)
            out, _, sizes, largest = aten._embedding_bag(
                weight.float(), *bag[1:6], None if scores is None else scores.float(), *bag[7:],
            )
            gradient, padding = draw(*out.shape), bag[-1]
            bag_of = torch.tensor([0, 0, 2, 2, 2, 2, 2, 3, 3])  # eager leaves it out where its sum needs none
            told = bag_of, sizes, largest, 11, False, mode
            if mode < 2:  # of maxima eager frees what it counts the rows by
                yield call("_embedding_bag_backward.default", gradient, tokens, offsets, *told, False, scores, padding)
            yield call("_embedding_bag_dense_backward.default", gradient, tokens, *told, scores, padding)
            if scores is not None:
                yield call(
                    "_embedding_bag_per_sample_weights_backward.default", gradient, weight, tokens, offsets, bag_of,
                    mode, padding,
                )


def masked(draw: Draw) -> Iterator[Call]:
    """Yield what goes by a mask."""
    n, x, mask = draw.batch, draw(draw.batch, 6, 5), draw.mask(draw.batch, 6, 5)
    yield call("masked_scatter.default", x, mask, draw(30 * n))
    yield call("masked_scatter.default", x, draw.mask(5), draw(30 * n))
    yield call("masked_scatter_backward.default", x, mask, [n, 30])
    yield call("nonzero_static.default", draw(n, 7), size=9)
    yield call("nonzero_static.default", draw(n, 7), size=30, fill_value=-5)
