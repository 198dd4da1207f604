"""Makes sums of gradients of slices one concatenation: PopART's pattern PadSum.

The gradient of what a model reads piece by piece (a step of a sequence at a time, halves of heads) is a sum of tensors
of the whole size, each of which is zero but for a piece. For n pieces that is n times the whole to fill and to add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchipu.ir.bodies import with_bodies_changed
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.pieces import PADS, OpsInstead, Place, Readers, Span, are_together, place_of, with_gaps

SUM = "aten.add.Tensor"


def concatenate_padded_sums(graph: Graph) -> Graph:
    """Return a graph in which pieces that lie beside each other are put together, and only then added to what remains.

    Pieces of the same elements are added first, in the order in which they were; so is what is no piece. Sums of
    ops that differ in leg, block or placement stay.

    Args:
        graph: A valid graph, placed or not.

    Returns:
        The new graph, or the same object where there are no such sums.
    """
    graph = with_bodies_changed(graph, concatenate_padded_sums)
    # What was put together may be a sum of pieces of pieces.
    before = None
    while graph is not before and any(op.target in PADS for op in graph.ops):
        before, graph = graph, _Sums(graph).rewritten()
    return graph


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is not zero of a padded tensor: what ``op`` pads, and where it lies."""

    op: Op
    place: Place


@dataclass(slots=True)
class _Row:
    """Pieces along a dimension, of which no two share some of their elements: they are apart, or the same."""

    dim: int
    pieces: dict[Span, list[_Piece]] = field(default_factory=dict)

    def takes(self, piece: _Piece) -> bool:
        """Add a piece if it fits in."""
        place = piece.place
        if place.dim != self.dim or (place.span not in self.pieces and any(map(place.overlaps, self.pieces))):
            return False
        self.pieces.setdefault(place.span, []).append(piece)
        return True

    @property
    def saves(self) -> bool:
        """Whether several tensors of the whole size become one."""
        return sum(map(len, self.pieces.values())) > 1


def _rows_of(pieces: Sequence[_Piece]) -> list[_Row]:
    """Return rows that hold the pieces, each in the first where it fits."""
    rows: list[_Row] = []
    for piece in pieces:
        if not any(row.takes(piece) for row in rows):
            rows.append(_Row(piece.place.dim))
            rows[-1].takes(piece)
    return rows


class _Sums(Readers):
    """The sums of a graph, and the ops that come in their place."""

    def rewritten(self) -> Graph:
        """Return the new graph; the same where nothing changes."""
        inner = {within for op in self.graph.ops for within in self._summed_by(op)}
        instead: dict[Op, list[Op]] = {}
        for op in self.graph.ops:
            if op not in inner and _is_sum(op):
                instead.update(self._instead_of(op))
        return self.with_ops(instead)

    def _summed_by(self, op: Op) -> Iterator[Op]:
        """Yield the sums that an op adds up, which nothing else reads."""
        for tensor in op.inputs if _is_sum(op) else ():
            maker = self.maker.get(tensor)
            if maker is not None and self.uses[tensor] == 1 and _is_sum(maker) and are_together(op, maker):
                yield maker

    def _instead_of(self, root: Op) -> dict[Op, list[Op]]:
        """Return what comes instead of a sum of sums, and of the ops that made what it adds up; nothing if it stays."""
        inner, addends = self._addends(root)
        pieces = {tensor: piece for tensor in addends if (piece := self._piece_of(tensor, root)) is not None}
        rows = _rows_of(list(pieces.values()))
        saving = [row for row in rows if row.saves]
        if not saving:
            return {}
        placed = [piece for row in saving for same in row.pieces.values() for piece in same]
        gone = {piece.op.outputs[0] for piece in placed}
        made = OpsInstead(root, self.names)
        whole = _sum(made, [tensor for tensor in addends if tensor not in gone])
        for row in saving:
            whole = _sum(made, [*whole, _row(made, row)])
        return {op: [] for op in (*inner, *(piece.op for piece in placed))} | {root: made.ended()}

    def _addends(self, root: Op) -> tuple[list[Op], list[Tensor]]:
        """Return the sums within a sum, and what all of them add up, in order."""
        inner: list[Op] = []
        addends: list[Tensor] = []
        waiting = list(reversed(root.inputs))
        within = set(self._summed_by(root))
        while waiting:
            tensor = waiting.pop()
            maker = self.maker.get(tensor)
            if maker is None or maker not in within:
                addends.append(tensor)
                continue
            inner.append(maker)
            within.update(self._summed_by(maker))
            waiting += reversed(maker.inputs)
        return inner, addends

    def _piece_of(self, tensor: Tensor, root: Op) -> _Piece | None:
        """Return the piece that a tensor is but for zeros, if the sum alone reads it."""
        op = self.maker.get(tensor)
        if op is None or op.target not in PADS or self.uses[tensor] != 1 or not are_together(root, op):
            return None
        place = place_of(op)
        return None if place is None else _Piece(op, place)


def _sum(made: OpsInstead, terms: Sequence[Tensor]) -> list[Tensor]:
    """Return the sum of the terms, added from the first to the last; none of none."""
    whole = list(terms[:1])
    for term in terms[1:]:
        whole = [made.add(SUM, [*whole, term], ["self", "other"], term.shape)]
    return whole


def _row(made: OpsInstead, row: _Row) -> Tensor:
    """Return the pieces of a row at their places, with zeros where there are none."""
    if len(row.pieces) == 1:
        (same,) = row.pieces.values()
        total, place = _total(made, same)
        op = next(piece.op for piece in same if piece.place == place)
        return made.add(op.target, [total], op.operands, op.outputs[0].shape, **op.attrs)
    members = [
        made.with_dim(*_total(made, row.pieces[span])) if is_piece else made.zeros(row.dim, span)
        for span, is_piece in with_gaps(list(row.pieces), made.root.outputs[0].shape[row.dim])
    ]
    return made.concatenated(row.dim, members)


def _total(made: OpsInstead, same: Sequence[_Piece]) -> tuple[Tensor, Place]:
    """Return the sum of pieces of the same elements, and where it lies; it has their dimension if one of them has."""
    place = max((piece.place for piece in same), key=lambda place: place.has_dim)
    given = [
        made.with_dim(piece.op.inputs[0], piece.place) if place.has_dim else piece.op.inputs[0] for piece in same
    ]
    return _sum(made, given)[0], place


def _is_sum(op: Op) -> bool:
    """Whether an op adds two tensors of one shape and type, elements as they are."""
    if op.target != SUM or len(op.inputs) != 2 or op.attrs.get("alpha", 1) != 1:
        return False
    return all((t.shape, t.dtype) == (op.outputs[0].shape, op.outputs[0].dtype) for t in op.inputs)
