"""Streams of random bits: which ops have them, and the words that they begin from.

Each bit is a function of the seed, the replica, the stream, the micro-batch and the element; docs/numerics.md says
which of them count when.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType, Leg
from torchipu.optable.spec import spec_of

RANDOM_STREAM = "random_stream"
"""Attribute of an op that draws random bits: the number of its stream."""
ROUNDING_STREAM = "rounding_stream"
"""Attribute of an op that rounds stochastically: the number of its first result's stream; others follow."""
ROUNDING_STREAMS = 1 << 31
"""The streams of rounding are numbered from here, those of ops that draw random bits from 0."""
FIRST_STREAMS: Mapping[Leg, int] = {Leg.FORWARD: 0, Leg.BACKWARD: 1 << 28, Leg.UPDATE: 1 << 29}
"""Numbers of the first stream of each leg: legs that are compiled apart share none."""
ROUNDS_TO_NEAREST = 1 << 32
"""Beside the replica in its word: halves that would be rounded stochastically are rounded to nearest."""
WORD = (1 << 64) - 1


def draws(op: Op) -> bool:
    """Whether an op draws random bits; rounding is none of it."""
    spec = spec_of(op)
    return spec is not None and spec.is_random


def rounding_stream(op: Op, result: Tensor) -> int | None:
    """Return the number of the stream by which a half result of an op is rounded; None for those of other types."""
    first = op.attrs.get(ROUNDING_STREAM)
    if result.dtype is not DType.HALF or not isinstance(first, int):
        return None
    return ROUNDING_STREAMS + first + op.outputs.index(result)


class Words(NamedTuple):
    """What a stream begins from: a row of LONG words."""

    seed: int
    replica: int
    stream: int
    micro_batch: int

    def forked(self, number: int) -> Words:
        """Return the words of a stream of its own, such as that of a trip of a loop; the kernel ``fork`` does the same.

        Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014 (SplitMix64).
        """
        z = self.seed + 0x9E3779B97F4A7C15 * (number + 1) & WORD
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
        return self._replace(seed=z ^ z >> 31)


WORDS = len(Words._fields)
"""LONG words of a stream."""


@dataclass(frozen=True, slots=True)
class Seeding:
    """From what all streams of a call begin.

    Attributes:
        seed: Key.
        first_micro_batch: Micro-batches before this call, or 0.
        micro_batches: Of an iteration.
        is_rounding: Whether halves that the program rounds stochastically are; otherwise to nearest.
    """

    seed: int = 0
    first_micro_batch: int = 0
    micro_batches: int = 1
    is_rounding: bool = True

    def words(
        self, stream: int, leg: Leg, replica: int, iteration: int, micro_batch: int | None, trips: Sequence[int] = (),
    ) -> Words:
        """Return what a stream begins from.

        Args:
            stream: Its number.
            leg: Of its op: what updates weights draws the same on all replicas.
            replica: Which runs it.
            iteration: Of the call.
            micro_batch: Of the iteration; None after the last.
            trips: Of the loops around, the outermost first.
        """
        count = self.first_micro_batch + iteration * self.micro_batches
        words = Words(
            self.seed & WORD, (0 if leg is Leg.UPDATE else replica) | (0 if self.is_rounding else ROUNDS_TO_NEAREST),
            stream, count + (self.micro_batches if micro_batch is None else micro_batch),
        )
        for trip in trips:
            words = words.forked(trip)
        return words
