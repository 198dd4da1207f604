"""The differences of all pairs of rows with what is made of them at once: distances, and the gradients of these.

``x.unsqueeze(-2) - y.unsqueeze(-3)`` has a row for each pair of rows; its norms, or its sums weighted by a number for
each pair, are taken without storing it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchipu._kernels.table.distances import (
    PAIR_NORMS,
    PAIR_PANEL,
    PAIR_SUMS,
    PairNorm,
    PairNormsInts,
    PairSumsInts,
)
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.fusions.picked import are_floats
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner

SUBTRACT, NORM = "aten.sub.Tensor", "aten.linalg_vector_norm.default"
MULTIPLY, SIGN, SUM = "aten.mul.Tensor", "aten.sign.default", "aten.sum.dim_IntList"
NORMS = {1: PairNorm.SUM, 2: PairNorm.EUCLIDEAN, math.inf: PairNorm.LARGEST}
LONGEST = 1024
"""Of the rows: a panel of longer ones would leave the cache."""
PAIR_SHARE = 1 << 18  # elements of differences that make one thread's share


def _pair(difference: Op) -> tuple[Tensor, Tensor] | None:
    """Return what differs by row and what by other row of ``[..., rows, others, length]``, or None."""
    shape, first, second = difference.outputs[0].shape, difference.operand("self"), difference.operand("other")
    if first is None or second is None or len(shape) < 3 or difference.number("alpha", 1) != 1:
        return None
    batch, (rows, others, length) = shape[:-3], shape[-3:]
    is_pair = (
        first.shape == (*batch, rows, 1, length)
        and second.shape in ((*batch, 1, others, length), *(((others, length),) if not batch else ()))
        and length > 1 and length <= LONGEST and 0 not in shape
    )
    return (first, second) if is_pair else None


def _are_norms(ops: Sequence[Op]) -> bool:
    difference, norm = ops
    dims = [dim % len(difference.outputs[0].shape) for dim in norm.integers("dim", ())]
    is_last = dims == [len(difference.outputs[0].shape) - 1]
    return are_floats(ops) and is_last and norm.number("ord", 2) in NORMS and _pair(difference) is not None


def _emit_norms(ops: Sequence[Op], plan: HostPlanner) -> None:
    difference, norm = ops
    pair = _pair(difference)
    assert pair is not None
    *batch, rows, others, length = difference.outputs[0].shape
    ints = PairNormsInts(rows, others, length, NORMS[norm.number("ord", 2)])
    first, second = (plan.value(tensor, DType.FLOAT) for tensor in pair)
    plan.step(
        PAIR_NORMS, [plan.output(norm.outputs[0], DType.FLOAT)], [first, second], ints=ints,
        items=math.prod(batch) * -(-others // PAIR_PANEL), grain=max(1, PAIR_SHARE // (rows * length * PAIR_PANEL)),
        scratch_bytes=4 * PAIR_PANEL * length,
    )


def _weights(difference: Op, product: Op) -> Tensor | None:
    """Return what is multiplied with differences, or their signs: one number for each pair; None for anything else."""
    of_pairs = (*difference.outputs[0].shape[:-1], 1)
    numbers = [tensor for tensor in product.inputs if tensor.shape == of_pairs]
    return numbers[0] if len(numbers) == 1 and len(product.inputs) == 2 else None


def _are_sums(ops: Sequence[Op]) -> bool:
    difference, product, total = ops[0], ops[-2], ops[-1]
    rank = len(difference.outputs[0].shape)
    dims = [dim % rank for dim in total.integers("dim", ())]
    return (
        are_floats(ops) and dims == [rank - 2] and _pair(difference) is not None
        and product.outputs[0].shape == difference.outputs[0].shape and _weights(difference, product) is not None
    )


def _emit_sums(ops: Sequence[Op], plan: HostPlanner) -> None:
    difference, product, total = ops[0], ops[-2], ops[-1]
    pair, weights = _pair(difference), _weights(difference, product)
    assert pair is not None
    assert weights is not None
    *batch, rows, others, length = difference.outputs[0].shape
    ints = PairSumsInts(rows, others, length, of_signs=ops[1].target == SIGN)
    held = [plan.value(tensor, DType.FLOAT) for tensor in (*pair, weights)]
    plan.step(
        PAIR_SUMS, [plan.output(total.outputs[0], DType.FLOAT)], held, ints=ints, items=math.prod(batch) * rows,
        grain=max(1, PAIR_SHARE // (others * length)),
    )


register_fusion(
    Fusion((SUBTRACT, NORM), _are_norms, _emit_norms), Fusion((SUBTRACT, MULTIPLY, SUM), _are_sums, _emit_sums),
    Fusion((SUBTRACT, SIGN, MULTIPLY, SUM), _are_sums, _emit_sums),
)
