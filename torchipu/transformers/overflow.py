"""Half results that models clamp where not all of them are finite: a program clamps them always.

BART and its relatives ask after each layer of the encoder, by a branch that depends on values, which no program has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class ClampAlways(TorchFunctionMode):
    """Says that halves are not all finite, whoever asks by ``torch.isfinite(...).all()``, so that they are clamped.

    The values are those of the branch: what models clamp to lies within 1000 of the largest half.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch, and answer for that one."""
        if function is torch.Tensor.all and len(args) == 1 and any(args[0] is one for one in self._asked):
            return False
        result = function(*args, **(kwargs or {}))
        if function is torch.isfinite and args[0].dtype == torch.float16:
            self._asked = [result]
        return result
