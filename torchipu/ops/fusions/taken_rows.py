"""Rows that are looked up, or multiplied by factors, and then only summed into others: they are read where they lie.

So graphs pass messages: the rows of the nodes where edges begin, each times the weight of its edge, are added to the
rows of the nodes where the edges end. What edges carry need not lie anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from torchipu._kernels.table.embedding import SUM_TAKEN_ROWS, SumRowsScalars, SumTakenRowsInts
from torchipu.host.emit.rows import INDEX_BYTES, bucket, row_grain
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.host_tensor import HostTensor, broadcast, collapse
from torchipu.optable.planner import HostPlanner

INDEX, SELECT, EMBED = "aten.index.Tensor", "aten.index_select.default", "aten.embedding.default"
LOOK_UPS = (INDEX, SELECT, EMBED)
MULTIPLY = "aten.mul.Tensor"
ADD = "aten.index_add.default"
PUTS = ("aten.index_put.default", "aten._unsafe_index_put.default")


def _taken(op: Op) -> tuple[Tensor, Tensor] | None:
    """Return the table and the index of a look-up of whole rows by one index, ``[n]``."""
    if op.target == INDEX:
        indices = op.operand_list("indices")
        index = indices[0] if len(indices) == 1 else None
        table = op.needed("self")
    else:
        names = ("weight", "indices") if op.target == EMBED else ("self", "index")
        table, index = (op.needed(name) for name in names)
    is_first = op.target != SELECT or op.integer("dim") % max(1, len(table.shape)) == 0
    if index is None or not is_first or len(index.shape) != 1 or index.dtype not in INDEX_BYTES:
        return None
    return table, index


def _added(op: Op) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """Return the base, the index, the rows that are added to it, and by what they are multiplied besides."""
    base = op.needed("self")
    if op.target == ADD:
        if op.integer("dim") % max(1, len(base.shape)):
            return None
        index, rows, alpha = op.needed("index"), op.needed("source"), float(op.number("alpha"))
    else:
        indices = op.operand_list("indices")
        if not op.flag("accumulate") or len(indices) != 1 or indices[0] is None:
            return None
        index, rows, alpha = indices[0], op.needed("values"), 1.0
    is_whole = len(index.shape) == 1 and rows.shape == (*index.shape, *base.shape[1:])
    return (base, index, rows, alpha) if is_whole and index.dtype in INDEX_BYTES else None


def _factor(ops: Sequence[Op]) -> Tensor | None:
    """Return what rows are multiplied by."""
    multiply = ops[-2]
    if multiply.target != MULTIPLY:
        return None
    first, second = multiply.needed("self"), multiply.needed("other")
    if len(ops) == 3:
        return second if first is ops[0].outputs[0] else first
    return second if first.shape == multiply.outputs[0].shape else first


def _multiplied(ops: Sequence[Op]) -> Tensor:
    """Return what the factors multiply, or what is summed as it is."""
    multiply = ops[-2]
    if multiply.target != MULTIPLY:
        return multiply.outputs[0]
    first, second = multiply.needed("self"), multiply.needed("other")
    return first if _factor(ops) is second else second


def _applies(ops: Sequence[Op]) -> bool:
    """Whether all are floats, and each of some parts of a row has one factor."""
    added = _added(ops[-1])
    if added is None or added[2] is not ops[-2].outputs[0]:
        return False
    base, _, rows, _ = added
    taken = _taken(ops[0]) if ops[0].target in LOOK_UPS else None
    if ops[0].target in LOOK_UPS and (taken is None or taken[0].shape[1:] != base.shape[1:]):
        return False
    if prod(rows.shape[1:]) < 2 or not rows.num_elements or not base.num_elements:
        return False
    floats = [base, rows, _multiplied(ops), ops[-1].outputs[0]]
    factor = _factor(ops)
    if factor is not None:
        if _multiplied(ops).shape != rows.shape or _factor_dims(factor, rows.shape) is None:
            return False
        floats.append(factor)
    return all(tensor.dtype is DType.FLOAT for tensor in (*floats, *([taken[0]] if taken else [])))


def _factor_dims(factor: Tensor, shape: Sequence[int]) -> int | None:
    """Return how many leading dimensions of rows the factors go along; they are repeated along all behind them."""
    aligned = (*(1,) * (len(shape) - len(factor.shape)), *factor.shape)
    dims = next((dim for dim in range(len(shape), 0, -1) if aligned[dim - 1] != 1), 0)
    whole = all(mine == other for mine, other in zip(aligned[1:max(1, dims)], shape[1:], strict=False))
    is_repeated = prod(shape[max(1, dims) :]) > 1
    return dims if len(aligned) == len(shape) and whole and is_repeated else None


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    added = _added(ops[-1])
    assert added is not None
    base, index, rows, alpha = added
    taken = _taken(ops[0]) if ops[0].target in LOOK_UPS else None
    table = plan.value(_multiplied(ops) if taken is None else taken[0], DType.FLOAT)
    named = table if taken is None else plan.value(taken[1])
    factor, (factor_row, parts, factor_part) = table, (0, 1, 0)
    found = _factor(ops)
    if found is not None:
        factor = plan.value(found, DType.FLOAT, contiguous=False)
        if (steps := _steps(factor, rows.shape, _factor_dims(found, rows.shape) or 0)) is None:
            factor = plan.value(found, DType.FLOAT)
            steps = _steps(factor, rows.shape, _factor_dims(found, rows.shape) or 0)
        assert steps is not None
        factor_row, parts, factor_part = steps
    held, count = plan.value(base, DType.FLOAT), base.shape[0]
    offsets, order = bucket(plan, plan.value(index), count, wrap=ops[-1].target in PUTS)
    inner = prod(base.shape[1:])
    ints = SumTakenRowsInts(
        rows=count, inner=inner, has_base=True, table_rows=table.shape[0],
        index_bytes=0 if taken is None else INDEX_BYTES[named.dtype], wraps=ops[0].target == INDEX,
        has_factor=found is not None, factor_row=factor_row, parts=parts, factor_part=factor_part,
    )
    out = plan.output(ops[-1].outputs[0], DType.FLOAT)
    # An index that the table has not is the look-up's; those of the sums have been looked at.
    plan.step(
        SUM_TAKEN_ROWS, [out], [held, table, offsets, order, named, factor], ints=ints, scalars=SumRowsScalars(alpha),
        items=count, grain=row_grain(inner), op=ops[0] if taken is not None else None,
    )


def _steps(factor: HostTensor, shape: Sequence[int], dims: int) -> tuple[int, int, int] | None:
    """Return the stride of factors from row to row, how many a row has, and their stride there, if it is one."""
    strides = broadcast(factor, shape).strides
    sizes, (steps,) = collapse(shape[1 : max(1, dims)], strides[1 : max(1, dims)])
    return (strides[0], sizes[0], steps[0] if sizes[0] > 1 else 0) if len(sizes) == 1 else None


for _last in (ADD, *PUTS):
    register_fusion(
        Fusion((MULTIPLY, _last), _applies, _emit),
        *(Fusion((_look_up, *_between, _last), _applies, _emit)
          for _look_up, _between in product(LOOK_UPS, ((), (MULTIPLY,)))),
    )
