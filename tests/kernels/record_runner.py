"""Runs one op through the emitter of its record on torch tensors, with nothing else of the host plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tests.kernels.elem_planner import DTYPES, MiniPlanner
from torchipu.ir.graph import Op, Tensor
from torchipu.optable.spec import lookup


def run_record(
    target: str, operands: Mapping[str, object], attrs: Mapping[str, object], results: Sequence[object],
    threads: int = 1,
) -> list[torch.Tensor]:
    """Run the emitter of a record.

    Args:
        target: Overload.
        operands: Tensors, or lists of tensors and Nones, by schema name.
        attrs: The other arguments.
        results: For each present result a tensor of its shape and dtype (or ``(shape, dtype)``).
        threads: Host threads.

    Returns:
        The results.
    """
    recorder = MiniPlanner(threads)
    names, inputs = [], []
    for name, given in operands.items():
        members = given if isinstance(given, (list, tuple)) else [given]
        marks = "".join("_" if member is None else "x" for member in members)
        names.append(f"{name}[{marks}]" if isinstance(given, (list, tuple)) else name)
        for member in members:
            if member is None:
                continue
            tensor = Tensor(f"i{len(inputs)}", tuple(member.shape), DTYPES[member.dtype])
            recorder.values[tensor] = recorder.hold(member.detach().clone().contiguous())
            inputs.append(tensor)
    outputs = []
    for result in results:
        shape, dtype = (tuple(result.shape), result.dtype) if isinstance(result, torch.Tensor) else result
        outputs.append(Tensor(f"o{len(outputs)}", tuple(shape), DTYPES[dtype]))
    spec = lookup(target)
    assert spec is not None, target
    assert spec.emit is not None, target
    op = Op(spec.kind, tuple(inputs), tuple(outputs), dict(attrs), target, tuple(names))
    assert spec.supports(op), f"{target} is not served"
    spec.emit(op, recorder)
    return recorder.finish(outputs)


def serves(target: str, operands: Mapping[str, object], attrs: Mapping[str, object]) -> bool:
    """Tell whether a record takes these operands."""
    names, inputs = [], []
    for name, given in operands.items():
        members = given if isinstance(given, (list, tuple)) else [given]
        marks = "".join("_" if member is None else "x" for member in members)
        names.append(f"{name}[{marks}]" if isinstance(given, (list, tuple)) else name)
        inputs += [Tensor(f"i{len(inputs)}", tuple(m.shape), DTYPES[m.dtype]) for m in members if m is not None]
    spec = lookup(target)
    assert spec is not None, target
    return spec.supports(Op(spec.kind, tuple(inputs), (), dict(attrs), target, tuple(names)))
