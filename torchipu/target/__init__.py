"""Machines: their numbers, each with its source."""

from torchipu.target.spec import TARGETS, Target, lookup_target

__all__ = ["TARGETS", "Target", "lookup_target"]
