"""The smallest model that has a pipeline: a linear layer and ReLU on one IPU, the loss on another."""

import torch
import torch.nn.functional as F
from torch import nn

from torchipu import Block


class TwoBlocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with Block("B1", ipu_id=0):
            h = F.relu(self.linear(x))
        with Block("B2", ipu_id=1):
            return F.mse_loss(h, y)
