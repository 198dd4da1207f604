"""Machines: their numbers, each with its source."""

from torchipu.target import bow, c600, mk1, mk2
from torchipu.target.spec import TARGETS, Target, lookup_target

__all__ = ["TARGETS", "Target", "bow", "c600", "lookup_target", "mk1", "mk2"]
