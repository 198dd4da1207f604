"""Private functions of PopTorch over nested arguments and results."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchipu.poptorch import structure
from torchipu.poptorch.hints import getIpuTensorId

__all__ = ["flattenTensorStructure", "getIpuTensorId", "reconstructTensorStructure"]


def flattenTensorStructure(tensors: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value in order.

    Args:
        tensors: Tuples, lists, dicts and objects of classes that `registerCustomArgParser` knows, nested at will.
    """
    return list(structure.tensors_in(tensors))


def reconstructTensorStructure(original_structure: Any, values: Iterable[torch.Tensor]) -> Any:
    """Return a nested value like another one, with other tensors.

    Args:
        original_structure: The value to copy.
        values: Its tensors, in the order of `flattenTensorStructure`.
    """
    return structure.with_tensors(original_structure, iter(values))
