"""A complex value as two tensors of floats: torch's `ComplexTensor`, which keeps them apart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    from torch._subclasses.complex_tensor import ComplexTensor as ComplexTensor
except ImportError:  # torch before 2.10
    ComplexTensor = None  # type: ignore[assignment, misc]

REAL = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}
"""The type of each part, by that of the whole."""


def is_complex(value: object) -> bool:
    """Whether it is a tensor of complex numbers as torch has them."""
    return isinstance(value, Tensor) and value.dtype.is_complex


def is_pair(value: object) -> bool:
    """Whether it is a complex value whose parts are tensors of their own."""
    return ComplexTensor is not None and isinstance(value, ComplexTensor)


def of_pair(value: Tensor) -> Any:
    """Return the complex value whose parts lie side by side, ``[..., 2]``."""
    pair: Any = ComplexTensor(value.select(-1, 0), value.select(-1, 1))
    pair.lying = value  # so that what is only shown is not copied
    return pair


def memory_of(value: Tensor) -> Tensor:
    """Return a complex tensor that has values as its memory, ``[..., 2]``."""
    return torch.view_as_real(value.detach().resolve_conj().resolve_neg()).clone()


def as_pair(value: Any) -> Tensor:
    """Return a complex value's parts side by side, ``[..., 2]``: as they lie, if they are of what lies so."""
    lying: Tensor | None = getattr(value, "lying", None)
    if lying is not None:
        return lying
    return torch.stack((value.re, value.im), -1)


def typed(value: Any, expected: Any) -> Any:
    """Return results in the types that the graph says they have."""
    if not isinstance(expected, Tensor):
        return value
    if is_complex(expected):
        if not is_pair(value):
            value = ComplexTensor(value, torch.zeros_like(value))
        real = REAL[expected.dtype]
        return value if value.re.dtype is real else ComplexTensor(value.re.to(real), value.im.to(real))
    value = value.re if is_pair(value) else value
    return value if value.dtype is expected.dtype else value.to(expected.dtype)


def as_complex(leaf: Any) -> Any:
    """Give a real tensor an imaginary part: else torch makes complex memory of it."""
    is_real = isinstance(leaf, Tensor) and not is_pair(leaf) and leaf.is_floating_point()
    return ComplexTensor(leaf, torch.zeros_like(leaf)) if is_real else leaf
