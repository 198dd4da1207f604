"""Where models that were pickled before with blocks look for them."""

from __future__ import annotations

from torchipu.poptorch.operators.blocks import BeginBlock, Block, BlockFunction, _BeginBlockFunction, _BlockHook

__all__ = [
    "BeginBlock",
    "Block",
    "BlockFunction",
    "_BeginBlockFunction",
    "_BlockHook",
]
