"""Runs the record of an op whose operands and results are given by schema name, strides and all."""

from __future__ import annotations

import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup


def run_op(
    target: str, operands: dict[str, torch.Tensor | None], attrs: dict[str, object],
    shapes: list[tuple[tuple[int, ...], DType]], threads: int = 1, planner: MiniPlanner | None = None,
) -> list[torch.Tensor]:
    """Run the emitter of a record on torch tensors and return its results."""
    plan = planner or MiniPlanner(threads)
    given: dict[str, Tensor] = {}
    for name, value in operands.items():
        if value is not None:
            given[name] = Tensor(f"t{len(given)}", tuple(value.shape), DTYPES[value.dtype])
            plan.values[given[name]] = plan.hold(value)
    outputs = tuple(Tensor(f"r{i}", shape, dtype) for i, (shape, dtype) in enumerate(shapes))
    spec = lookup(target)
    assert spec is not None
    assert spec.emit is not None
    op = Op(spec.kind, tuple(given.values()), outputs, attrs, target, tuple(given))
    assert spec.supports(op)
    spec.emit(op, plan)
    return plan.finish(outputs)
