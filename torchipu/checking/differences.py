"""Which op gives another value on the host than it should: each one alone, on the operands that the machine had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from torchipu.checking.distances import bound, distance
from torchipu.device.machine import Draw
from torchipu.emulation.eager import evaluate, evaluate_as_typed
from torchipu.emulation.loading import machine_of
from torchipu.host.executor import GraphExecutor
from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Graph, Op
from torchipu.ir.text import format_op
from torchipu.optable.marks import MARK
from torchipu.optable.random_streams import Seeding, Words
from torchipu.optable.spec import spec_of
from torchipu.step.base import ProgramStep

SEED = 1
"""From which ops draw that run by themselves."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An op that one side computes otherwise than eager PyTorch.

    Attributes:
        op: The op.
        superstep: Number of the compute set in which the machine has computed it.
        result: Which of its results.
        index: The element that is farthest off.
        expected: What that is by eager PyTorch in float64.
        found: What the side gives.
        side: ``the host``, or the tile and its IPU.
    """

    op: Op
    superstep: int
    result: int
    index: tuple[int, ...]
    expected: float
    found: float
    side: str = "the host"

    def __str__(self) -> str:
        element = f"[{', '.join(map(str, self.index))}]"
        return "\n".join((
            f"  first   {self.op.target}, superstep {self.superstep}, result {self.result}",
            f"  op      {format_op(self.op)}",
            f"  source  {self.op.source}",
            f"  value   {element}: expected {self.expected:.9g}, {self.side} gives {self.found:.9g}",
        ))


class DifferenceError(Exception):
    """Ends a machine at the first difference.

    Attributes:
        difference: What it is.
    """

    def __init__(self, difference: Difference) -> None:
        super().__init__()
        self.difference = difference


def first_difference(
    step: ProgramStep, inputs: Sequence[torch.Tensor], before: Mapping[str, np.ndarray], seeding: Seeding,
) -> Difference | None:
    """Run a call once more, each op also on the host by itself; return the first that differs, if one does.

    Args:
        step: That has made the call.
        inputs: Tensors of the call.
        before: What states, constants and hyper-parameters held before it, by name.
        seeding: From what its streams of random bits began.
    """
    assert step._built is not None

    def evaluated(op: Op, operands: Sequence[np.ndarray], draw: Draw | None = None, /) -> list[np.ndarray]:
        found = alone(op, operands)
        if found is not None:
            raise DifferenceError(replace(found, superstep=machine.supersteps))
        return evaluate(op, operands, draw)

    machine = machine_of(
        step.compiled.executable, step._built, step.options, inputs, step.micro_batches, evaluated, states=before,
        seeding=seeding,
    )
    try:
        machine.run()
    except DifferenceError as end:
        return end.difference
    return None


def alone(op: Op, operands: Sequence[np.ndarray]) -> Difference | None:
    """Compute an op on the host alone; return how it differs from eager PyTorch, if it does.

    Args:
        op: An op; one without a record, which ATen computes on the host too, differs in nothing.
        operands: Its operands, floats in float64.
    """
    spec = spec_of(op)
    if spec is None or spec.is_view or (spec.emit is None and spec.instruction is None) or not op.outputs:
        return None
    if any(value.size != tensor.num_elements for tensor, value in zip(op.inputs, operands, strict=True)):
        return None  # a share of a replica, of which the host has no op by itself
    tensors = dict.fromkeys(op.inputs)
    rounded = {
        tensor: torch.from_numpy(np.array(value, order="C")).to(TORCH_DTYPES[tensor.dtype])
        for tensor, value in zip(op.inputs, operands, strict=True)
    }
    # Recomputed or not: here it is computed.
    by_itself = replace(op, attrs={name: value for name, value in op.attrs.items() if name != MARK})
    graph = Graph("one_op", tuple(tensors), op.outputs, (by_itself,))
    # Before the host, which overwrites states.
    given = [_array(rounded[tensor]) for tensor in op.inputs]
    exact, typed = evaluate(op, given, _draw), evaluate_as_typed(op, given, _draw)
    executor = GraphExecutor(graph, threads=1, seed=SEED)
    on_host = [_array(value) for value in executor(*(rounded[one].clone() for one in tensors))]
    return differing(op, on_host, exact, [typed])


def _draw(stream: int) -> Words:
    """Return what a stream of random bits of an op begins from that runs by itself."""
    return Words(SEED, 0, stream, 0)


def differing(
    op: Op, found: Sequence[np.ndarray], exact: Sequence[np.ndarray], typed: Sequence[Sequence[np.ndarray]],
) -> Difference | None:
    """Return the first result of an op that is further off than rounding explains.

    Args:
        op: The op.
        found: Its results by one side.
        exact: In float64.
        typed: In the types of the program, once or more.
    """
    for number, (given, wanted, *near) in enumerate(zip(found, exact, *typed, strict=True)):
        given = given.reshape(wanted.shape)
        if distance(given, wanted) > bound(wanted, *near):
            place = np.unravel_index(int(np.argmax(_apart(given, wanted))), wanted.shape) if wanted.shape else ()
            index = tuple(int(one) for one in place)
            return Difference(op, 0, number, index, float(wanted[index]), float(given[index]))
    return None


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return how far elements are apart; infinitely where only one of the two is a number."""
    apart = np.abs(one.astype(np.float64) - other)
    return np.where(np.isnan(apart), np.where(np.isnan(one) == np.isnan(other), 0.0, np.inf), apart)


def _array(value: torch.Tensor) -> np.ndarray:
    return np.asarray(value.detach().double() if value.is_floating_point() else value.detach())
