"""The name under which PopTorch keeps the reading of arguments."""

from __future__ import annotations

from torchipu.poptorch.arguments.parser import ArgsParser, Arguments

__all__ = ["ArgsParser", "Arguments"]
