"""Interpolation stays one op each way while AOT autograd traces, which torch would take apart into gathers.

torch gives these operators implementations in Python, which come before any table of decompositions: an index for each
neighbour of a result, and for gradients additions at indices. The device has an op for them, as do we.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import get_scale_value, upsample_compute_output_size

from torchipu.ops.resample import INTERPOLATIONS


def implementations() -> dict[Any, Callable[..., Tensor] | None]:
    """Return what implements each overload while AOT autograd traces; None for what torch has in C++."""
    packets = [getattr(torch.ops.aten, name) for name in INTERPOLATIONS]
    by: dict[Any, Callable[..., Tensor] | None] = {packet.vec: _by_default(packet) for packet in packets}
    return by | dict.fromkeys(packet.default for packet in packets)


def _by_default(packet: Any) -> Callable[..., Tensor]:
    """Return the form that takes a size or factors, by the one that takes a size.

    torch's own in C++ knows no symbolic sizes, and gradients of the other one know none: these are taken apart as ever.
    """
    taken_apart = packet.vec.py_kernels[DispatchKey.CompositeImplicitAutograd]

    def interpolate(input: Tensor, size: Sequence[int] | None, *given: Any) -> Tensor:
        align, factors = given[:-1], given[-1]
        results = upsample_compute_output_size(input.size(), size, factors)
        is_symbolic = any(isinstance(each, torch.SymInt) for each in (*input.size(), *results))
        if is_symbolic and input.requires_grad and torch.is_grad_enabled():
            if factors is not None and "nearest" in packet.__name__:
                # The nearest one would be told in double precision, which the device lacks: for these sizes alone.
                for each in input.size()[2:]:
                    int(each)
            return taken_apart(input, size, *given)
        return packet.default(input, results, *align, *(get_scale_value(factors, dim) for dim in range(len(results))))

    return interpolate
