"""Accumulators of gradients over micro-batches, and their sums over replicas: ops of ours beside a captured graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType, Leg, Role
from torchipu.ops.scaling import ACCUMULATE_MEAN


@dataclass(frozen=True, slots=True)
class Accumulation:
    """Ops that add up gradients over micro-batches."""

    inputs: tuple[Tensor, ...] = ()
    ops: tuple[Op, ...] = ()
    resets: tuple[Op, ...] = ()
    updates: tuple[tuple[Tensor, Tensor], ...] = ()


def accumulate(
    gradients: Mapping[str, Tensor], micro_batches: int, *, dtype: DType | None = None, running_mean: bool = False,
) -> tuple[dict[str, Tensor], Accumulation]:
    """Give every gradient an accumulator, unless there is one micro-batch only.

    Args:
        gradients: Gradient of each parameter by its name.
        micro_batches: Micro-batches between two updates.
        dtype: Type of the accumulators; None for that of each gradient.
        running_mean: Whether an accumulator holds the mean of the gradients so far instead of their sum.

    Returns:
        What the update reads for each parameter, and the ops to add.
    """
    if micro_batches == 1:
        return dict(gradients), Accumulation()
    accumulated: dict[str, Tensor] = {}
    parts: list[Accumulation] = []
    for name, gradient in gradients.items():
        held_type = dtype or gradient.dtype
        held, total, reset = accumulator(f"acc.{name}", gradient.shape, held_type)
        accumulated[name] = total
        if not running_mean:
            ops = (accumulating("ipu.accumulate.default", (held, gradient), (total,)),)
            parts.append(Accumulation((held,), ops, (reset,), ((held, reset.outputs[0]),)))
            continue
        count, counted, recount = accumulator(f"count.{name}", (), DType.FLOAT)
        ops = (accumulating(ACCUMULATE_MEAN, (held, gradient, count), (total, counted)),)
        updates = ((held, reset.outputs[0]), (count, recount.outputs[0]))
        parts.append(Accumulation((held, count), ops, (reset, recount), updates))
    return accumulated, joined(parts)


def joined(parts: Iterable[Accumulation]) -> Accumulation:
    """Return all parts as one."""
    parts = list(parts)
    return Accumulation(
        tuple(tensor for part in parts for tensor in part.inputs), tuple(op for part in parts for op in part.ops),
        tuple(op for part in parts for op in part.resets), tuple(pair for part in parts for pair in part.updates),
    )


def accumulator(name: str, shape: tuple[int, ...], dtype: DType) -> tuple[Tensor, Tensor, Op]:
    """Return an accumulator, what it holds after the last micro-batch, and the op that clears it."""
    place, _, of = name.partition(".")
    held = Tensor(name, shape, dtype, Role.ACCUMULATOR)
    total = Tensor(f"{place}_sum.{of}", shape, dtype, Role.ACCUMULATOR)
    zero = Tensor(f"{place}_zero.{of}", shape, dtype, Role.ACCUMULATOR)
    reset = Op(
        "fill_zero", (total,), (zero,), target="ipu.fill_zero.default", operands=("accumulator",), leg=Leg.UPDATE,
    )
    return held, total, reset


def accumulating(target: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> Op:
    """Return an op that changes an accumulator, its first operand, by a gradient, its second."""
    return Op(
        target.split(".")[1], inputs, outputs, target=target,
        operands=("accumulator", "gradient", "count")[: len(inputs)], leg=Leg.BACKWARD,
    )


def as_made(ops: Sequence[Op], accumulations: Sequence[Op]) -> list[Op]:
    """Put each accumulation right behind what makes its gradient, which then has to be kept no longer."""
    due: dict[Tensor, list[Op]] = {}
    for op in accumulations:
        due.setdefault(op.inputs[1], []).append(op)  # parameters may share a gradient
    ordered: list[Op] = []
    for op in ops:
        ordered += [op, *(late for tensor in op.outputs for late in due.pop(tensor, ()))]
    return [*ordered, *(op for left in due.values() for op in left)]


def all_reduce(gradients: Mapping[str, Tensor], replicas: int) -> tuple[dict[str, Tensor], tuple[Op, ...]]:
    """Add the gradients up over the replicas, if there are several.

    Args:
        gradients: What each replica has at the end of its micro-batches, by parameter name.
        replicas: Number of replicas.

    Returns:
        What the update reads for each parameter, and the ops to add.
    """
    if replicas == 1:
        return dict(gradients), ()
    reduced, ops = {}, []
    for name, gradient in gradients.items():
        total = Tensor(f"reduced.{name}", gradient.shape, gradient.dtype, gradient.role)
        ops.append(Op(
            "all_reduce", (gradient,), (total,), {"replicas": replicas}, target="ipu.all_reduce.default",
            operands=("gradient",), leg=Leg.UPDATE,
        ))
        reduced[name] = total
    return reduced, tuple(ops)
