"""What differs where a step of a program runs again on what it has left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchipu.lightning.effects import Effect


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of a step's effects the next micro-batch does otherwise on the CPU.

    Attributes:
        told: The places, each with the line at which the step then goes another way, if that is known.
        once: Places that a step writes only if they are as they were.
        anew: Containers that a step fills anew, though it cannot be seen from what the first run leaves.
        unplayed: What the step leaves only when it runs again.
    """

    told: Mapping[Any, str]
    once: frozenset[Any] = frozenset()
    anew: frozenset[Any] = frozenset()
    unplayed: tuple[Effect, ...] = ()
