"""Calls of the records that show, move, join, cut and fill."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tests.ops.cases.drawing import Call, Draw, call


def cases(draw: Draw) -> Iterator[Call]:
    """Yield the calls."""
    yield from shown(draw)
    yield from cut(draw)
    yield from joined(draw)
    yield from filled(draw)


def shown(draw: Draw) -> Iterator[Call]:
    """Yield calls that show all elements, or some, in another order."""
    n, x = draw.batch, draw(draw.batch, 4, 5)
    for name in ("view.default", "view_copy.default", "_unsafe_view.default", "reshape.default"):
        yield call(name, x, [n, 20])
        yield call(name, draw(), [1, 1])
    yield call("_reshape_alias.default", x, [n, 20], [20, 1])
    for copy in ("", "_copy"):
        yield call(f"permute{copy}.default", x, [2, 0, -2])
        yield call(f"permute{copy}.default", draw(), [])
        yield call(f"transpose{copy}.int", x, 0, -1)
        yield call(f"t{copy}.default", draw(n, 5))
        yield call(f"t{copy}.default", draw(7))
        yield call(f"expand{copy}.default", draw(4, 1), [n, 4, 6])
        yield call(f"expand{copy}.default", draw(), [n, 2])
        yield call(f"unsqueeze{copy}.default", x, -2)
        yield call(f"unsqueeze{copy}.default", draw(), 0)
        yield call(f"squeeze{copy}.default", draw(n, 1, 5, 1))
        yield call(f"squeeze{copy}.dim", draw(n, 1, 5), 1)
        yield call(f"squeeze{copy}.dims", draw(n, 1, 5, 1), [1, -1])
        yield call(f"alias{copy}.default", x)
        yield call(f"detach{copy}.default", x)
        yield call(f"diagonal{copy}.default", x, 1, 1, 2)
        yield call(f"unfold{copy}.default", draw(n, 9), 1, 3, 2)
    for name in ("clone.default", "lift_fresh_copy.default"):
        yield call(name, x)
        yield call(name, draw())
    yield call("repeat.default", x, [2, 1, 3, 1])
    yield call("flip.default", x, [0, 2])
    yield call("roll.default", x, [2, -1], [0, 2])
    yield call("roll.default", x, [3])
    for name in ("as_strided.default", "as_strided_copy.default"):
        yield call(name, draw(6, 5), [4, 3], [5, 1], 2)
        yield call(name, draw(20), [3, 4, 2], [4, 1, 1])
    for name in ("tril.default", "triu.default"):
        yield call(name, x, 1)
        yield call(name, draw(6, 6), -2)
    yield call("diag_embed.default", draw(n, 4), 1)


def cut(draw: Draw) -> Iterator[Call]:
    """Yield calls that take parts, or give the gradient of taking them."""
    n, x = draw.batch, draw(draw.batch, 7, 5)
    for copy in ("", "_copy"):
        yield call(f"slice{copy}.Tensor", x, 1, 1, 6, 2)
        yield call(f"slice{copy}.Tensor", x, 1, -3, 1000)
        yield call(f"slice{copy}.Tensor", x, 1, 4, 4)
        yield call(f"select{copy}.int", x, 1, -2)
        yield call(f"split{copy}.Tensor", x, 3, 1)
        yield call(f"split_with_sizes{copy}.default", x, [1, 0, 4, 2], 1)
        yield call(f"unbind{copy}.int", x, 1)
    yield call("unsafe_split.Tensor", x, 2, -1)
    yield call("unsafe_split_with_sizes.default", x, [4, 3], 1)
    yield call("slice_scatter.default", x, draw(n, 3, 5), 1, 1, 6, 2)
    yield call("select_scatter.default", x, draw(n, 5), 1, 3)
    yield call("slice_backward.default", draw(n, 3, 5), [n, 7, 5], 1, 1, 6, 2)
    yield call("select_backward.default", draw(n, 5), [n, 7, 5], 1, 3)
    yield call("diagonal_scatter.default", x, draw(n, 5), -1, 1, 2)
    yield call("diagonal_backward.default", draw(n, 4), [n, 7, 5], 1, 1, 2)
    yield call("as_strided_scatter.default", draw(6, 5), draw(4, 3), [4, 3], [5, 1], 2)
    yield call("unfold_backward.default", draw(n, 4, 3), [n, 9], 1, 3, 2)


def joined(draw: Draw) -> Iterator[Call]:
    """Yield calls that put tensors together, or pad them."""
    n = draw.batch
    parts = [draw(n, 4), draw(n, 1), draw(n, 7)]
    yield call("cat.default", parts, 1)
    yield call("cat.default", [draw(n, 4), draw(0), draw(5, 4)], 0)
    yield call("stack.default", [draw(n, 4), draw(n, 4)], -1)
    yield call("stack.default", [draw(), draw()], 0)
    yield call("constant_pad_nd.default", draw(n, 4, 5), [1, 2, 0, 3], 1.5 if draw.dtype.is_floating_point else 1)
    yield call("constant_pad_nd.default", draw(n, 6), [-2, 1])


def filled(draw: Draw) -> Iterator[Call]:
    """Yield calls whose result depends on no value; what ``empty`` gives is compared by type and shape."""
    n, x, dtype = draw.batch, draw(draw.batch, 5), draw.dtype
    yield call("full.default", [n, 5], 2, dtype=dtype)
    yield call("full.default", [], 3, dtype=dtype)
    yield call("full_like.default", x, 2)
    yield call("new_full.default", x, [4, 3], 1)
    yield call("scalar_tensor.default", 3, dtype=dtype)
    yield call("fill.Scalar", x, 2)
    yield call("fill.Tensor", x, draw())
    yield call("arange.default", 2 * n + 1, dtype=dtype)
    yield call("arange.start", 1, 9, dtype=dtype)
    yield call("arange.start_step", 1, 12, 3, dtype=dtype)
    yield call("linspace.default", 1, 9, 2 * n + 1, dtype=dtype)
    for value in ("ones", "zeros", "empty"):
        first = "empty.memory_format" if value == "empty" else f"{value}.default"
        yield call(first, [n, 5], dtype=dtype)
        yield call(f"{value}_like.default", x)
        yield call(f"{value}_like.default", x, dtype=torch.float32)
        yield call(f"new_{value}.default", x, [4, 3])
    yield call("zero.default", x)
    yield call("empty_permuted.default", [n, 4, 5], [1, 0, 2], dtype=dtype)
    yield call("new_empty_strided.default", x, [4, 3], [3, 1])
    yield call("empty_strided.default", [4, 3], [1, 4], dtype=dtype)
    yield call("_efficientzerotensor.default", [n, 5], dtype=dtype)
