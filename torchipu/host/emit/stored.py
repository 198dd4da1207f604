"""Operands of kernels that take numbers as they lie in memory, and make floats of them while they compute."""

from __future__ import annotations

from torchipu._kernels.table.convert import Stored
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

STORED = {DType.FLOAT: Stored.FLOATS, DType.HALF: Stored.HALVES, DType.BFLOAT: Stored.BFLOATS}


def value_as_stored(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return where a value lies, row-major: as halves or as bfloats where it lies so; else as floats."""
    return plan.value(tensor, plan.stored_type(tensor))


def type_of_all(plan: HostPlanner, *tensors: Tensor) -> DType:
    """Return as what values lie, all of them; floats where they differ, and where there are floats of some."""
    types = {plan.stored_type(tensor) for tensor in tensors}
    return types.pop() if len(types) == 1 else DType.FLOAT


def stored_alike(plan: HostPlanner, *tensors: Tensor) -> tuple[HostTensor, ...]:
    """Return where values lie, row-major: as halves or as bfloats where all of them lie so; else as floats."""
    dtype = type_of_all(plan, *tensors)
    return tuple(plan.value(tensor, dtype) for tensor in tensors)
