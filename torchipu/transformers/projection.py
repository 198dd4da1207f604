"""The product with the vocabulary in parts, one after another: a language model's largest one needs less memory so."""

from __future__ import annotations

import torch
from torch.nn import functional

from torchipu import poptorch


class SerialisedLinear(torch.nn.Linear):
    """A linear layer whose outputs are computed in `num_parts` parts; the values are those of the whole.

    Attributes:
        num_parts: How many.
    """

    num_parts: int = 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ``[..., out_features]``; the weight is padded to a multiple of the parts."""
        weight = functional.pad(self.weight, (0, 0, 0, -self.out_features % self.num_parts))
        product = poptorch.serializedMatMul(
            input, weight.t(), poptorch.MatMulSerializationMode.OutputChannels, self.num_parts,
        )[..., : self.out_features]
        return product if self.bias is None else product + self.bias


def serialise(model: torch.nn.Module, num_parts: int) -> None:
    """Cut the product of a model with its vocabulary, or make it whole again.

    Args:
        model: Its ``get_output_embeddings()`` is meant; nothing is done where there is none.
        num_parts: Number of parts; 1 for the whole.
    """
    find = getattr(model, "get_output_embeddings", None)
    projection = find() if find is not None else None
    if isinstance(projection, SerialisedLinear):
        projection.__class__ = torch.nn.Linear  # type: ignore[assignment]
        vars(projection).pop("num_parts", None)
    if num_parts > 1 and type(projection) is torch.nn.Linear:
        projection.__class__ = SerialisedLinear
        vars(projection)["num_parts"] = num_parts
