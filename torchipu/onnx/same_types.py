"""Operators of one type of operands, whose result the converter asks torch the type of: no graph holds such a question.

Semantics: the operator specifications of ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def divide(x: Tensor, y: Tensor) -> Tensor:
    """Return quotients; those of whole numbers are cut towards zero."""
    return torch.div(x, y, rounding_mode=None if x.is_floating_point() else "trunc")


OPERATORS: Mapping[str, Callable[..., Tensor]] = {"Div": divide, "Where": torch.where}
"""By type."""
