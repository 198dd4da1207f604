"""Keeps padding out of what layers make: zeros in the rows that a mask leaves out."""

from __future__ import annotations

from typing import Any

import torch


class PreLayerMasker(torch.nn.Module):
    """Sets rows of padding to zero in front of a layer that would mix them with others, such as a normalisation.

    Args:
        layer: What gets the rows; None to return them.
    """

    def __init__(self, layer: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, mask: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return the layer's result.

        Args:
            x: Rows of nodes, edges or graphs ``[N, C]``.
            mask: Which of them are real ``[N]``.
            *args: Further arguments of the layer.
            **kwargs: Further arguments of the layer.
        """
        masked = torch.where(mask.view(-1, *(1,) * (x.dim() - 1)), x, x.new_zeros(()))
        return masked if self.layer is None else self.layer(masked, *args, **kwargs)
