"""A machine that computes every op twice: whole, and vertex by vertex; see ``simulated``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import torchipu
from tests.device.tilings.simulated import simulate
from torchipu.device.machine import Machine
from torchipu.device.stores import Place, Values
from torchipu.device.tiles.layout import BITS, is_wide
from torchipu.device.tiles.machine import runs_of
from torchipu.emulation.eager import evaluate
from torchipu.emulation.loading import machine_of
from torchipu.errors import UnsupportedOpError
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.program import Variable, VertexGroup
from torchipu.ir.types import DType
from torchipu.optable.random_streams import draws

WORDS = np.iinfo(np.int32)
TOLERANCE = {DType.HALF: 4e-3, DType.FLOAT: 1e-5}
"""Of the largest magnitude of a result: what rounding to the type, in whatever order, explains."""


class Judged(Machine):
    """Holds the vertices of every op to what the op itself gives.

    Attributes:
        tiled: How many ops of each target have vertices.
        whole: How many have not.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tiled: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()
        self.without_kernel: dict[str, str] = {}
        self._groups: dict[int, list[tuple[VertexGroup, int]]] = {}
        for function in self.executable.functions.values():
            for group, repeats in runs_of(function):
                self._groups.setdefault(id(group.op), []).append((group, repeats))

    def _computed(self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place) -> list[Values]:
        op = group.op
        if group.tiling is None or group.over_shares:
            self.whole[op.target] += 1
            return super()._computed(group, fields, place)
        self.tiled[op.target] += 1
        if draws(op):
            return super()._computed(group, fields, place)  # a part of it draws other bits; see test_random.py
        operands = [self._seen(tensor, fields[tensor], place)[0] for tensor in op.inputs]
        wanted = super()._computed(group, fields, place)
        groups = self._groups[id(op)]
        for tensor, given, found in zip(op.outputs, wanted, simulate(groups, operands, kernels=False), strict=True):
            np.testing.assert_allclose(found, given[0], 1e-9, scale_of(given[0], 1e-9), err_msg=f"{op.target} {tensor}")
        self._by_kernels(op, groups, operands)
        return wanted

    def _by_kernels(self, op: Op, groups: Sequence[tuple[VertexGroup, int]], operands: Sequence[np.ndarray]) -> None:
        if any(is_wide(tensor) for tensor in (*op.inputs, *op.outputs)):
            return  # doubles on the host, floats on the tiles: the tile machine's own tests
        with np.errstate(over="ignore"):
            typed = [np.asarray(value).astype(BITS[tensor.dtype])
                     for tensor, value in zip(op.inputs, operands, strict=True)]
        again = [widened(tensor, value) for tensor, value in zip(op.inputs, typed, strict=True)]
        wanted = evaluate(op, again)
        try:
            results = simulate(groups, typed, kernels=True)
        except UnsupportedOpError as error:
            self.without_kernel[op.target] = str(error)
            return
        for tensor, given, found in zip(op.outputs, wanted, results, strict=True):
            has_half_sums = tensor.dtype is DType.FLOAT and op.attrs.get("partials") == "half"
            bound = TOLERANCE.get(DType.HALF if has_half_sums else tensor.dtype, 0.0)
            given, found = within_words(tensor, np.asarray(given), found)
            np.testing.assert_allclose(found.astype(np.float64), np.asarray(given, np.float64), bound,
                                       scale_of(np.asarray(given, np.float64), bound), err_msg=f"{op.target} {tensor}")


def within_words(tensor: Tensor, given: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Leave out whole numbers that a word of a tile does not hold: what becomes of them is nobody's business.

    A model of language makes some by casting the logarithm of a distance of zero, and chooses others in their place.
    """
    if tensor.dtype is not DType.LONG:
        return given, found
    is_held = (given > WORDS.min) & (given <= WORDS.max)
    return np.where(is_held, given, 0), np.where(is_held, found, 0)


def widened(tensor: Tensor, value: np.ndarray) -> np.ndarray:
    """Return what tile memory holds as the types that PyTorch computes with here."""
    if value.dtype.kind == "f":
        return value.astype(np.float64)
    return value.astype(np.int64) if tensor.dtype is DType.LONG else value


def scale_of(values: np.ndarray, bound: float) -> float:
    """Return the error that a bound allows beside values as large as these."""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return bound * (float(np.abs(finite).max(initial=0.0)) + 1e-30)


def judge(
    module: torch.nn.Module, *inputs: torch.Tensor, optimizer: Any = None, options: torchipu.Options | None = None,
) -> Judged:
    """Run a call of a module on a machine that holds the vertices of every op to the op.

    Args:
        module: Its forward returns the loss where it is trained.
        *inputs: Of a whole call.
        optimizer: Makes the optimiser of the parameters; None for inference.
        options: Of the step.

    Returns:
        The machine, with its counts.
    """
    options = options or torchipu.Options(allow_out_of_memory=True)
    if optimizer is None:
        step: Any = torchipu.InferenceStep(module.eval(), options)
    else:
        step = torchipu.TrainStep(module, optimizer(module.parameters()), options)
    step.compile(*inputs)
    machine = machine_of(
        step.compiled.executable, step._built, options, inputs, step.micro_batches, evaluate, kind=Judged,
    )
    assert isinstance(machine, Judged)
    machine.run()
    return machine
