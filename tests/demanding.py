"""A model that looks at its argument itself; not in a test, whose assertions pytest rewrites."""

from __future__ import annotations

from typing import Any

import torch


class Demanding(torch.nn.Module):
    """Looks at its argument itself, as torch's recurrent layers do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.layer = torch.nn.LSTM(6, 4)

    def forward(self, x: torch.Tensor) -> Any:
        if self.how == "raises" and x.shape[-1] != 6:
            raise ValueError(f"six features, it's {x.shape[-1]}")
        assert self.how != "asserts" or x.shape[-1] == 6
        return self.layer({"x": x}["y" if self.how == "looks up" else "x"])[0]
