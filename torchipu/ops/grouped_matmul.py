"""Products of groups of rows, each with its own matrix: mixtures of experts, whose groups differ from run to run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torchipu._kernels.table.grouped_matmul import (
    GROUP_COLUMNS,
    GROUP_ROWS,
    GROUPED_MATMUL,
    GROUPED_OUTER,
    GroupedMatmulInts,
    GroupedOuterInts,
)
from torchipu.device.compute_sets import in_first
from torchipu.device.product_sets import matmul_vertices
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.host.emit.matmul import emit_product, matrix
from torchipu.host.emit.packing import right_operand, rows_apart
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, operand_labels
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target


# --------------------------------------------------------------------------- device side
def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower to a product for each group, with as many rows each as if the rows were spread evenly."""
    left, right = op.inputs[0], op.inputs[1]
    if len(left.shape) == len(right.shape) == 2:
        groups = op.needed("offs").num_elements
        shape = (groups, left.shape[0], ceil_div(left.shape[1], max(1, groups)), right.shape[1])
    else:
        groups = right.shape[0]
        rows = left.shape[1] if len(left.shape) == 3 else ceil_div(left.shape[0], max(1, groups))
        shape = (groups, rows, right.shape[1], right.shape[2])
    return in_first(matmul_vertices(op, target, *shape, left.dtype), _PRODUCT)


def _lower_gradient(op: Op, target: Target) -> tuple[Vertices, ...]:
    left, right = op.inputs[0], op.inputs[1]
    groups, inner, columns = right.shape
    rows = ceil_div(left.shape[0], max(1, groups))
    return (
        *in_first(matmul_vertices(op, target, groups, rows, columns, inner, left.dtype), _INPUT_GRADIENT),
        *in_first(matmul_vertices(op, target, groups, inner, rows, columns, left.dtype), _WEIGHT_GRADIENT),
    )


# Which rows a group has is known only when the program runs: a vertex has some columns of the matrices of all groups.
def _slicing(op: Op) -> Slicing:
    left, right = (operand_labels(op)[place] for place in (0, 1))
    rows, columns = op.inputs[0].shape[-2], op.inputs[1].shape[-1]
    ranks = len(op.inputs[0].shape), len(op.inputs[1].shape)
    of_columns = Axis(columns, {right: (ranks[1] - 1, 1), "out": (len(op.outputs[0].shape) - 1, 1)})
    if ranks == (2, 3):
        return Slicing((Axis(rows, {left: (0, 1), "out": (0, 1)}), of_columns), ends="offs")
    of_rows = Axis(rows, {left: (ranks[0] - 2, 1), "out": (1, 1)})
    if ranks == (2, 2):
        return Slicing((of_rows, of_columns))
    groups = Axis(op.inputs[0].shape[0], {left: (0, 1), right: (0, 1), "out": (0, 1)})
    return Slicing((groups, of_rows, of_columns))


def _gradient_slicing(op: Op, number: int) -> Slicing:
    """Return how one of the two gradients is cut up."""
    rows, inner = op.needed("input").shape
    columns = op.needed("weight").shape[2]
    of_inner = Axis(inner, {"input": (1, 1), "weight": (1, 1), "out": (1, 1), "out1": (1, 1)})
    if number == 0:
        of_rows = Axis(rows, {"grad_output": (0, 1), "input": (0, 1), "out": (0, 1)})
        return Slicing((of_rows, of_inner), ends="offs")
    of_columns = Axis(columns, {"grad_output": (1, 1), "weight": (2, 1), "out1": (2, 1)})
    return Slicing((of_inner, of_columns), (1,))


_PRODUCT = sliced(_slicing)
_INPUT_GRADIENT, _WEIGHT_GRADIENT = (sliced(partial(_gradient_slicing, number=number)) for number in (0, 1))


# --------------------------------------------------------------------------- host side
def _turned(held: HostTensor) -> HostTensor:
    """Show a matrix, or each of several, transposed."""
    *batch, rows, columns = held.shape
    *batch_strides, row, column = held.strides
    return HostTensor(held.buffer, held.offset, (*batch, columns, rows), (*batch_strides, column, row), held.dtype)


def _emit_rows(plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, ends: HostTensor) -> None:
    """Emit ``out [M, N]`` from ``left [M, K]`` and ``right [G, K, N]``; groups of rows end at ``ends [G]``."""
    rows, columns, inner, groups = out.shape[0], out.shape[1], left.shape[1], right.shape[0]
    strides = rows_apart(left)
    assert strides is not None
    right, layout = right_operand(plan, right, ceil_div(rows, max(1, groups)), columns, inner)
    plan.step(
        GROUPED_MATMUL, [out], [left, right, ends],
        ints=GroupedMatmulInts(
            rows=rows, columns=columns, inner=inner, left_row=strides[0], left_column=strides[1],
            right_group=layout[0], right_panel=layout[1], right_row=layout[2], groups=groups,
        ),
        items=ceil_div(rows, GROUP_ROWS) * ceil_div(columns, GROUP_COLUMNS),
        writes=[Blocks.of((rows, columns), (GROUP_ROWS, GROUP_COLUMNS))],
    )


def _emit_outer(plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, ends: HostTensor) -> None:
    """Emit ``out [G, M, N]`` from ``left [M, K]`` and ``right [K, N]``; groups of summands end at ``ends [G]``."""
    strides = rows_apart(left)
    assert strides is not None
    groups, rows, columns = out.shape
    plan.step(
        GROUPED_OUTER, [out], [left, right, ends],
        ints=GroupedOuterInts(
            rows=rows, columns=columns, inner=left.shape[1], left_row=strides[0], left_column=strides[1],
            right_row=right.strides[0],
        ),
        items=groups * ceil_div(rows, GROUP_ROWS) if columns else 0,
        writes=[Blocks.of((groups, rows, columns), (1, GROUP_ROWS, columns))],
    )


def _emit_fallback(op: Op, plan: HostPlanner) -> None:
    left, right = matrix(plan, op.needed("input")), matrix(plan, op.needed("weight"))
    ends = plan.value(op.needed("offs"), DType.LONG)
    _emit_rows(plan, plan.output(op.outputs[0], DType.FLOAT), left, right, ends)


def _emit_fallback_gradient(op: Op, plan: HostPlanner) -> None:
    left, right = matrix(plan, op.needed("input")), matrix(plan, op.needed("weight"))
    gradient, ends = plan.value(op.needed("grad_output"), DType.FLOAT), plan.value(op.needed("offs"), DType.LONG)
    if plan.wanted(op.outputs[0]):
        _emit_rows(plan, plan.output(op.outputs[0], DType.FLOAT), gradient, _turned(right), ends)
    if plan.wanted(op.outputs[1]):
        _emit_outer(plan, plan.output(op.outputs[1], DType.FLOAT), _turned(left), gradient, ends)


def _emit_aten(op: Op, plan: HostPlanner) -> None:
    left, right = matrix(plan, op.needed("self")), matrix(plan, op.needed("mat2"))
    out, ends = plan.output(op.outputs[0], DType.FLOAT), op.operand("offs")
    if ends is None:
        emit_product(plan, out, left, right)
    elif len(right.shape) == 3:
        _emit_rows(plan, out, left, right, plan.value(ends, DType.LONG))
    else:
        _emit_outer(
            plan, out, left, plan.value(op.needed("mat2"), DType.FLOAT), plan.value(ends, DType.LONG),
        )


def _is_grouped_by_rows_or_summands(op: Op) -> bool:
    ranks = len(op.inputs[0].shape), len(op.inputs[1].shape)
    grouped = op.operand("offs") is not None
    return op.operand("bias") is None and (ranks in ((2, 3), (2, 2)) if grouped else ranks == (3, 3))


register(
    OpSpec("transformers.grouped_mm_fallback.default", "grouped_mm", _lower, _emit_fallback),
    OpSpec(
        "transformers.grouped_mm_fallback_backward.default", "grouped_mm_backward", _lower_gradient,
        _emit_fallback_gradient,
    ),
    OpSpec(
        "aten._grouped_mm.default", "grouped_mm", _lower, _emit_aten, supports=_is_grouped_by_rows_or_summands,
    ),
)
