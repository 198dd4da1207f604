"""Machines: their numbers, each with its source."""

from torchipu.target import bow, bow_pods, c600, mk1, mk2, pods
from torchipu.target.rules import Rule
from torchipu.target.spec import TARGETS, Target, lookup_target

__all__ = ["TARGETS", "Rule", "Target", "bow", "bow_pods", "c600", "lookup_target", "mk1", "mk2", "pods"]
