"""Machines: their numbers, each with its source."""

from torchipu.target import bow, mk1, mk2
from torchipu.target.spec import TARGETS, Target, lookup_target

__all__ = ["TARGETS", "Target", "bow", "lookup_target", "mk1", "mk2"]
