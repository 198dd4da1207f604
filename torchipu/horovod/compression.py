"""How values travel: as they are, as halves, or as a class of the program's own says."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """How values travel; a program's own way is a subclass, given as ``compression``."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return what travels, and what `decompress` has to know.

        Args:
            tensor: What is exchanged, of any shape.
        """
        raise NotImplementedError("a compressor needs a method compress(tensor), which returns what travels and a note")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return the result of an exchange from what has travelled.

        Args:
            tensor: What came back.
            ctx: The note of `compress`.
        """
        raise NotImplementedError("a compressor needs a method decompress(tensor, note), which returns the result")


class NoneCompressor(Compressor):
    """As they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: None) -> torch.Tensor:
        """Return the tensor itself."""
        return tensor


class FP16Compressor(Compressor):
    """Floats as halves; other values as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.dtype]:
        """Return floats as halves, and the type that they have."""
        return tensor.half() if tensor.is_floating_point() else tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: torch.dtype) -> torch.Tensor:
        """Return a tensor of the type that `compress` was given."""
        return tensor.to(ctx)


class Compression:
    """How `allreduce` may send values."""

    none = NoneCompressor
    fp16 = FP16Compressor
