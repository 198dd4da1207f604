"""One instruction on operands that are broadcast to short rows, as of outer products; against eager PyTorch's bits."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import Ref, run_chain

SHAPES = [
    ((3, 5, 1), (3, 1, 7)), ((3, 1, 7), (3, 5, 1)), ((100, 8, 1), (100, 1, 8)), ((50, 16, 1), (50, 1, 16)),
    ((7, 64, 1), (7, 1, 64)), ((3, 33, 1), (3, 1, 100)), ((40, 1), (1, 255)), ((2, 3, 1), (2, 1, 256)),
    ((9, 30, 17), (9, 30, 1)), ((9, 1, 17), (9, 30, 17)), ((2, 6, 1, 5, 1), (1, 6, 3, 1, 9)), ((30, 1), (5, 30, 20)),
]
"""Of two operands; rows of 256 elements and more are read where they lie."""
OPERATORS = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "maximum.default", "minimum.default"]


def drawn(shape: tuple[int, ...]) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return values.masked_fill(values > 1.8, float("nan"))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcast_rows(shapes: tuple[tuple[int, ...], ...], operator: str) -> None:
    operands = tuple(map(drawn, shapes))
    for threads in (1, 2):
        (ours,), (eager,), _ = run_chain([(f"aten.{operator}", operands, {})], [0], threads)
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("comparison", ["eq", "ne", "lt", "le", "gt", "ge"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_masks_of_rows(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype, comparison: str) -> None:
    """As one-hot rows are: a comparison, and what becomes of it."""
    operands = tuple((drawn(shape) * 3).nan_to_num(7).to(dtype) for shape in shapes)
    compared = (f"aten.{comparison}.Tensor", operands, {})
    for made in (torch.int64, torch.float32):
        ours, eager, _ = run_chain([compared, ("aten._to_copy.default", (Ref(0),), {"dtype": made})], [1], 2)
        assert torch.equal(ours[0], eager[0])
    converted = ("aten._to_copy.default", (Ref(0),), {"dtype": torch.int64})
    again = ("aten._to_copy.default", (Ref(1),), {"dtype": torch.float32})
    for calls in ([compared], [compared, converted, again]):
        ours, eager, _ = run_chain(calls, [len(calls) - 1], 1)
        assert torch.equal(ours[0], eager[0])


@pytest.mark.parametrize("shape", [(8, 5, 7, 7), (3, 40), (2, 6, 28, 28), (2, 3, 9)], ids=str)
def test_slopes_of_channels(shape: tuple[int, ...]) -> None:
    x, slopes = drawn(shape), drawn((1, shape[1], *(1 for _ in shape[2:])))
    (ours,), (eager,), _ = run_chain([("aten._prelu_kernel.default", (x, slopes), {})], [0], 2)
    torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_of_larger_tensors(operator: str) -> None:
    """Rows that lie apart: whole ones, and rows of which the ends are left out."""
    x, y = drawn((6, 20, 40)), drawn((6, 20, 1))
    for piece in (x[:, ::2, 3:30], x[::3, :, :1].expand(2, 20, 27), x[:, :, 5:32]):
        rows = y[: len(piece), : piece.shape[1]]
        for operands in ((piece, rows), (rows, piece), (piece, x[:1, : piece.shape[1], 9:36])):
            (ours,), (eager,), _ = run_chain([(f"aten.{operator}", operands, {})], [0], 1)
            torch.testing.assert_close(ours, eager, rtol=0, atol=0, equal_nan=True)
