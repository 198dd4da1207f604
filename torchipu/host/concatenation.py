"""Pieces that are made where they are concatenated: chains of elementwise ops and look-ups of rows store them there.

`cat` and `stack` copy their pieces side by side. A piece that nothing else reads may as well be stored where the copy
would put it, if it comes from a chain, which stores by any strides, or from an op whose record says that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torchipu.host.uses import Uses
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, collapse, contiguous_strides
from torchipu.optable.spec import spec_of

LEAST_RUN = 32
"""Elements that a chain stores in a row, so far apart as they may lie: going from row to row takes as long as a few."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a piece goes: the result that it is part of, and how it would lie in memory that begins with that."""

    whole: Tensor
    held: HostTensor


class Concatenations:
    """Finds where results are concatenated of chains and of ops that store by strides, and keeps memory of the whole.

    Args:
        graph: Its own ops are looked at, not those of bodies.
        uses: Who makes and reads values.
        is_chained: Whether a chain computes an op.
        is_copied: Whether an op is emitted by itself, as its record says.
        varying: What each run computes anew, as pieces that go to a whole must be; None where all are.
    """

    def __init__(
        self, graph: Graph, uses: Uses, is_chained: Callable[[Op], bool], is_copied: Callable[[Op], bool],
        varying: set[Tensor] | None,
    ) -> None:
        self._uses, self._is_chained, self._is_copied, self._varying = uses, is_chained, is_copied, varying
        self._ops = set(graph.ops)
        self._places: dict[Tensor, _Place] = {}
        self._memory: dict[Tensor, HostTensor] = {}
        for op in graph.ops:
            spec = spec_of(op)
            if spec is not None and spec.pieces is not None and is_copied(op):
                self._note(op, list(spec.pieces(op, _as_if_stored(op.outputs[0]))))

    def memory_of(self, tensor: Tensor) -> HostTensor | None:
        """Return where pieces of a result lie already; None if there are none."""
        return self._memory.get(tensor)

    def place_of(self, piece: Tensor, allocate: Callable[[Tensor], HostTensor]) -> HostTensor | None:
        """Return where a result is to be stored to be part of a whole; None for anywhere.

        Args:
            piece: The result.
            allocate: Returns row-major memory for the whole, and nothing else.
        """
        place = self._places.get(piece)
        if place is None:
            return None
        if place.whole not in self._memory:
            self._memory[place.whole] = allocate(place.whole)
        return replace(place.held, buffer=self._memory[place.whole].buffer)

    def _note(self, op: Op, pieces: list[tuple[Tensor, HostTensor]]) -> None:
        """Note the pieces that go straight to their places, where they are at least half of the whole.

        Memory of the whole is taken from the first of them on.
        """
        fitting = [number for number, (piece, held) in enumerate(pieces) if self._fits(op, piece, held)]
        if 2 * sum(pieces[number][0].num_elements for number in fitting) >= op.outputs[0].num_elements:
            self._places.update((pieces[number][0], _Place(op.outputs[0], pieces[number][1])) for number in fitting)

    def _fits(self, op: Op, piece: Tensor, held: HostTensor) -> bool:
        maker = self._uses.makers.get(piece)
        return (
            maker in self._ops and maker is not None and self._stores_at(maker, held)
            and (maker.leg, maker.placement) == (op.leg, op.placement)
            and self._uses.readers[piece] == [op] and piece not in self._uses.kept
            # Halves may be left as floats, by whoever makes them.
            and piece.dtype is op.outputs[0].dtype is not DType.HALF
            and (self._varying is None or piece in self._varying)
        )

    def _stores_at(self, maker: Op, held: HostTensor) -> bool:
        """Whether an op stores its result by such strides."""
        if self._is_chained(maker):
            return collapse(held.shape, held.strides)[0][-1] >= LEAST_RUN
        spec = spec_of(maker)
        return (
            spec is not None and spec.places is not None and self._is_copied(maker) and spec.places(maker, held)
        )


def varying(graph: Graph, constant: Iterable[Tensor]) -> set[Tensor]:
    """Return the values that depend on inputs beside those that seldom change."""
    found = set(graph.inputs) - set(constant)
    for op in graph.ops:
        if not found.isdisjoint(op.inputs):
            found.update(op.outputs)
    return found


def _as_if_stored(tensor: Tensor) -> HostTensor:
    return HostTensor(0, 0, tensor.shape, contiguous_strides(tensor.shape), tensor.dtype)
