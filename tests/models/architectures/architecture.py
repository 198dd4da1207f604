"""A model with inputs: what both families of architectures are made into, and the one seed of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

Inputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """A model of one of the libraries, small, with random weights and inputs.

    Attributes:
        name: The package's name of it.
        package: ``timm`` or ``transformers``.
        make: Makes the module, which takes the inputs by name and returns ``(loss, results)``, and the inputs.
    """

    name: str
    package: str
    make: Callable[[], tuple[nn.Module, Inputs]]

    def new(self) -> tuple[nn.Module, Inputs]:
        """Return the module and its inputs, the same each time, with nothing left to chance when it trains.

        Random bits of the IPU differ from those of the CPU: dropout would tell nothing of the rest.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module, inputs = self.make()
        for member in module.modules():
            for chance in ("p", "drop_prob", "drop_rate", "dropout", "attn_drop_rate"):
                given = getattr(member, chance, None)
                if isinstance(given, float) and "drop" in (type(member).__name__ + chance).lower():
                    setattr(member, chance, 0.0)
        return module, inputs
