"""Ops between the gradients of one micro-batch and the update: accumulation, and all-reduce over replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import Leg, Role


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Ops that add up gradients over micro-batches."""

    inputs: tuple[Tensor, ...] = ()
    ops: tuple[Op, ...] = ()
    resets: tuple[Op, ...] = ()
    updates: tuple[tuple[Tensor, Tensor], ...] = ()


def accumulate(gradients: dict[str, Tensor], micro_batches: int) -> tuple[dict[str, Tensor], Accumulation]:
    """Give every gradient an accumulator, unless there is one micro-batch only.

    Args:
        gradients: Gradient of each parameter by its name.
        micro_batches: Micro-batches between two updates.

    Returns:
        What the update reads for each parameter, and the ops to add.
    """
    if micro_batches == 1:
        return gradients, Accumulation()
    accumulated, inputs, ops, resets, updates = {}, [], [], [], []
    for name, gradient in gradients.items():
        held = Tensor(f"acc.{name}", gradient.shape, gradient.dtype, Role.ACCUMULATOR)
        total = Tensor(f"acc_sum.{name}", gradient.shape, gradient.dtype, Role.ACCUMULATOR)
        zero = Tensor(f"acc_zero.{name}", gradient.shape, gradient.dtype, Role.ACCUMULATOR)
        ops.append(Op(
            "accumulate", (held, gradient), (total,), target="ipu.accumulate.default",
            operands=("accumulator", "gradient"),
            leg=Leg.BACKWARD,
        ))
        resets.append(Op(
            "fill_zero", (total,), (zero,), target="ipu.fill_zero.default", operands=("accumulator",), leg=Leg.UPDATE,
        ))
        accumulated[name] = total
        inputs.append(held)
        updates.append((held, zero))
    return accumulated, Accumulation(tuple(inputs), tuple(ops), tuple(resets), tuple(updates))


def as_made(ops: Sequence[Op], accumulations: Sequence[Op]) -> list[Op]:
    """Put each accumulation right behind what makes its gradient, which then has to be kept no longer.

    Args:
        ops: Of a micro-batch.
        accumulations: Each reads the accumulator, then the gradient.
    """
    due: dict[Tensor, list[Op]] = {}
    for op in accumulations:
        due.setdefault(op.inputs[1], []).append(op)  # parameters may share a gradient
    ordered: list[Op] = []
    for op in ops:
        ordered += [op, *(late for tensor in op.outputs for late in due.pop(tensor, ()))]
    return [*ordered, *(op for left in due.values() for op in left)]


def all_reduce(gradients: dict[str, Tensor], replicas: int) -> tuple[dict[str, Tensor], tuple[Op, ...]]:
    """Add the gradients up over the replicas, if there are several.

    Args:
        gradients: What each replica has at the end of its micro-batches, by parameter name.
        replicas: Number of replicas.

    Returns:
        What the update reads for each parameter, and the ops to add.
    """
    if replicas == 1:
        return gradients, ()
    reduced, ops = {}, []
    for name, gradient in gradients.items():
        total = Tensor(f"reduced.{name}", gradient.shape, gradient.dtype, gradient.role)
        ops.append(Op(
            "all_reduce", (gradient,), (total,), {"replicas": replicas}, target="ipu.all_reduce.default",
            operands=("gradient",), leg=Leg.UPDATE,
        ))
        reduced[name] = total
    return reduced, tuple(ops)
