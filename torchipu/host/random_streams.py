"""Streams of random bits of a host plan: which ops draw, and where the words lie that they begin from."""

from __future__ import annotations

from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.host.memory import Memory
from torchipu.host.storage import Place
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.types import DType, Leg
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding
from torchipu.optable.random_streams import RANDOM_STREAM, ROUNDING_STREAM, WORDS, draws, rounding_stream


class RandomStreams:
    """Where the streams of a plan lie.

    Args:
        graph: Whose ops draw.
        memory: Receives the words.

    Attributes:
        rows: Place of each stream among the words, by its number.
        shared: Places of the streams that are the same on all replicas.
        words: Allocation of the words; None while nothing draws.
    """

    def __init__(self, graph: Graph, memory: Memory) -> None:
        self.graph, self.memory = graph, memory
        self.rows: dict[int, int] = {}
        self.shared: list[int] = []
        self.words: int | None = None

    def of_op(self, op: Op) -> HostTensor:
        """Return LONG[4], the words from which an op draws."""
        return self._row(op.integer(RANDOM_STREAM), op)

    def of_rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result is rounded, with the words where bits decide, as the precision pass has said."""
        if result.dtype is not DType.HALF:
            return TO_NEAREST
        overflow = HalfOverflow[op.text("half_overflow", "infinity").upper()]
        stream = rounding_stream(op, result)
        if stream is None:
            return Rounding(None, overflow) if overflow else TO_NEAREST
        return Rounding(self._row(stream, op), overflow)

    def _row(self, stream: int, op: Op) -> HostTensor:
        if self.words is None:
            most = sum(
                (len(op.outputs) if ROUNDING_STREAM in op.attrs else 0) + draws(op)
                for op in walk_ops(self.graph.ops)
            )
            self.words = self.memory.allocate(max(1, most) * WORDS * 8, Place.RANDOM).number
        if stream not in self.rows:
            self.rows[stream] = len(self.rows)
            if op.leg is Leg.UPDATE:
                self.shared.append(self.rows[stream])
        return HostTensor(self.words, WORDS * self.rows[stream], (WORDS,), (1,), DType.LONG)
