"""Private functions of PopTorch over nested arguments and results."""

from __future__ import annotations

from torchipu.poptorch.arguments.structure import flattenTensorStructure, reconstructTensorStructure
from torchipu.poptorch.operators.hints import getIpuTensorId

__all__ = ["flattenTensorStructure", "getIpuTensorId", "reconstructTensorStructure"]
