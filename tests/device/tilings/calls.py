"""Vertices of a single ATen call, against the op itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.device.tilings.judged import TOLERANCE, runs_of, scale_of, widened
from tests.device.tilings.simulated import simulate
from tests.ops.cases.drawing import Call
from tests.ops.one_op import Program, tensors_of
from torchipu.device.tiles.layout import BITS
from torchipu.emulation.eager import evaluate
from torchipu.errors import UnsupportedOpError
from torchipu.ir.graph import Op
from torchipu.ir.program import VertexGroup
from torchipu.ir.types import DType


def _sets_of(program: Program) -> Iterator[tuple[Op, list[tuple[VertexGroup, int]]]]:
    """Yield the ops of a program with their compute sets."""
    found: dict[int, list[tuple[VertexGroup, int]]] = {}
    for function in program.compiled.executable.functions.values():
        for group, repeats in runs_of(function):
            found.setdefault(id(group.op), []).append((group, repeats))
    for groups in found.values():
        yield groups[0][0].op, groups


def judge_call(call: Call, tiles: int) -> str:
    """Hold the vertices of a call to what it gives, in float64 and by kernels.

    Args:
        call: The call.
        tiles: Of the machine.

    Returns:
        What became of it: ``tiled``, ``whole``, ``no kernel`` or ``nothing`` where nothing runs.
    """
    program = Program(call, tiles=tiles)
    given = dict(zip(program.imported.placeholders, tensors_of(call), strict=True))
    for op, groups in _sets_of(program):
        if any(tensor not in given for tensor in op.inputs):
            return "several ops"
        if any(group.tiling is None for group, _ in groups):
            return "whole"
        typed = [given[tensor].detach().numpy().astype(BITS[tensor.dtype]) for tensor in op.inputs]
        wide = [widened(tensor, value) for tensor, value in zip(op.inputs, typed, strict=True)]
        wanted = evaluate(op, wide)
        _compare(op, simulate(groups, wide, kernels=False), wanted, dict.fromkeys(DType, 1e-9))
        try:
            _compare(op, simulate(groups, typed, kernels=True), wanted, TOLERANCE)
        except UnsupportedOpError:
            return "no kernel"
        return "tiled"
    return "nothing"


def _compare(op: Op, found: list[np.ndarray], wanted: list[np.ndarray], bounds: dict[DType, float]) -> None:
    for tensor, one, other in zip(op.outputs, found, wanted, strict=True):
        bound = bounds.get(tensor.dtype, 0.0)
        np.testing.assert_allclose(one.astype(np.float64), np.asarray(other, np.float64), bound,
                                   scale_of(np.asarray(other, np.float64), bound), err_msg=f"{op.target} {tensor}")


