"""Operands of chains that are read where they lie, for as long as they do, and long copies; against eager PyTorch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import Ref, run_chain, run_op
from torchipu._kernels.table.elementwise import OPERATIONS, ChainInstruction
from torchipu.optable.overwriting import overwritten

SHAPES = [
    ((5, 4096), (4096,)), ((5, 4096), (5, 1)), ((7, 784), (784,)), ((7, 784), (7, 1)), ((11, 196), (11, 1)),
    ((3, 5, 130), (3, 1, 130)), ((3, 5, 1000), (5, 1)), ((64, 3, 96), (96,)), ((64, 64), (64,)), ((40, 4, 16), (4, 16)),
    ((2, 6, 1024), (1, 6, 1)), ((4, 1500), (1500,)), ((9, 63), (9, 1)), ((3, 1, 700), (1, 4, 1)),
]
"""Of two operands, one of which at least is broadcast."""


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.randint(-40, 40, shape, generator=torch.Generator().manual_seed(len(shape) + shape[-1]))
    if dtype is torch.bool:
        return values > 0
    return (values / 8 if dtype.is_floating_point else values).to(dtype)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8], ids=str,
)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcast_operands_of_a_chain(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    """The second operand is read twice, and registers are taken again for results in between."""
    x, y = (drawn(shape, dtype) for shape in shapes)
    full = torch.broadcast_shapes(*shapes)
    x = x.expand(full)
    calls = [
        ("aten.sub.Tensor", (x, y), {}), ("aten.mul.Tensor", (Ref(0), y), {}), ("aten.neg.default", (Ref(1),), {}),
        ("aten.add.Tensor", (Ref(2), Ref(0)), {}), ("aten.sub.Tensor", (Ref(3), y), {}),
    ]
    for threads in (1, 2):
        ours, eager, _ = run_chain(calls, [0, 4], threads)
        for mine, its in zip(ours, eager, strict=True):
            assert torch.equal(mine, its)  # of small whole numbers and eighths all of it is exact


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcast_conditions_and_what_they_choose(shapes: tuple[tuple[int, ...], ...]) -> None:
    full, part = shapes
    condition, x, y = drawn(part, torch.bool), drawn(full, torch.float32), drawn(part, torch.float32)
    (ours,), (eager,) = run_op("aten.where.self", condition, x, y)
    assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op("aten.where.self", drawn(full, torch.bool), y, x)
    assert torch.equal(ours, eager)


def test_one_value_of_a_row_goes_into_elements_that_lie_apart() -> None:
    """What a register holds once is repeated before it is stored."""
    x = torch.arange(6.0).reshape(2, 3, 1).half()
    (ours,), (eager,) = run_op("aten._to_copy.default", x.expand(2, 3, 512), dtype=torch.float32)
    assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op("aten.add.Tensor", x.expand(2, 3, 512), torch.zeros(512, dtype=torch.float16))
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("columns", [127, 128, 129, 511, 512, 513, 516, 600, 1000, 1024, 4097])
@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float32, torch.int64], ids=str)
def test_rows_of_any_length_are_copied_to_any_place(columns: int, dtype: torch.dtype) -> None:
    x = drawn((3, columns + 3), dtype)
    for first in range(3):
        piece = x[:, first : first + columns]
        (ours,), (eager,) = run_op("aten.cat.default", [x[:, :first], piece, piece], 1)
        assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op("aten.index_select.default", x, 0, torch.tensor([2, 0, 2]))
    assert torch.equal(ours, eager)


def test_a_result_that_is_written_before_the_last_reading_does_not_lie_over_what_a_register_shows() -> None:
    """Slots 0 and 1 are results, 2 is an operand that is loaded to the register 3."""
    load, multiply, add = (OPERATIONS[name] for name in ("x_load", "f_mul", "f_add"))
    program = [
        ChainInstruction(load, 3, 2, 2, 2, 0), ChainInstruction(multiply, 0, 3, 3, 3, 0),
        ChainInstruction(add, 1, 3, 0, 3, 0),
    ]
    arguments = [0, 1, 2, None]
    assert overwritten(program, arguments, 2, 1) == (frozenset(), frozenset([0]))
    program.insert(1, ChainInstruction(add, 3, 3, 3, 3, 0))  # from here on the register is its own
    assert overwritten(program, arguments, 2, 1) == (frozenset([0]), frozenset([0]))
