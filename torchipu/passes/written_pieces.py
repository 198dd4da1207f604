"""Makes a tensor that is written piece by piece one concatenation, and a read of a piece one of what was written there.

A loop that fills a tensor step by step writes in place in eager PyTorch. In a graph of values each write makes the
whole tensor anew, n times for n steps, and so does each gradient of a write.
"""

from __future__ import annotations

from dataclasses import replace

from torchipu.ir.bodies import with_bodies_changed
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.optable.dead_ops import drop_dead
from torchipu.optable.pieces import (
    READS,
    SLICE,
    WRITES,
    OpsInstead,
    Place,
    Readers,
    Span,
    are_together,
    place_of,
    with_gaps,
)

ALL_ZEROS = frozenset({"aten.zeros.default", "aten.zeros_like.default", "aten.new_zeros.default"})


def concatenate_written_pieces(graph: Graph) -> Graph:
    """Return a graph in which writes one behind the other are one op, and a read finds what it reads behind others.

    Writes whose result something else reads as a whole stay, and so do those into an input of the graph, which may
    happen in place.

    Args:
        graph: A valid graph without no-ops, placed or not.

    Returns:
        The new graph, or the same object where nothing is written so.
    """
    graph = with_bodies_changed(graph, concatenate_written_pieces)
    if not any(op.target in WRITES for op in graph.ops):
        return graph
    return _Chains(drop_dead(_with_near_reads(graph))).rewritten()


# --------------------------------------------------------------------------- reads
def _with_near_reads(graph: Graph) -> Graph:
    """Let each read of a piece read what was written there, or what lay there before others were written."""
    changing = {state for state, _ in graph.updates}
    maker: dict[Tensor, Op] = {}
    same: dict[Tensor, Tensor] = {}
    ops = []
    for op in graph.ops:
        if any(tensor in same for tensor in op.inputs):
            op = replace(op, inputs=tuple(same.get(tensor, tensor) for tensor in op.inputs))
        if op.target in READS:
            source, is_piece = _source(op, maker)
            if is_piece and source not in changing:
                same[op.outputs[0]] = source
                continue
            if not is_piece and source is not op.inputs[0] and source not in changing:
                op = replace(op, inputs=(source,))
        maker.update(dict.fromkeys(op.outputs, op))
        ops.append(op)
    return replace(
        graph, ops=tuple(ops), outputs=tuple(same.get(tensor, tensor) for tensor in graph.outputs),
        updates=tuple((state, same.get(value, value)) for state, value in graph.updates),
    )


def _source(op: Op, maker: dict[Tensor, Op]) -> tuple[Tensor, bool]:
    """Return what a read reads behind the writes of other pieces, and whether that is the very piece."""
    whole, place = op.inputs[0], place_of(op)
    while place is not None:
        writer = maker.get(whole)
        if writer is None or writer.target not in WRITES or not are_together(op, writer):
            break
        written = place_of(writer)
        if written is None or written.dim != place.dim:
            break
        if written == place and _agree(writer.inputs[1], op.outputs[0]):
            return writer.inputs[1], True
        if place.overlaps(written.span):
            break
        whole = writer.inputs[0]
    return whole, False


def _agree(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.dtype is second.dtype


# --------------------------------------------------------------------------- writes
class _Chains(Readers):
    """Writes one behind the other, and the ops that come in their place."""

    def rewritten(self) -> Graph:
        """Return the new graph."""
        before = {op: self._before(op) for op in self.graph.ops if op.target in WRITES}
        inner = {op for op in before.values() if op is not None}
        instead: dict[Op, list[Op]] = {}
        for last in before:
            if last in inner:
                continue
            chain = [last]
            while (op := before[chain[-1]]) is not None:
                chain.append(op)
            instead.update(self._instead_of(chain))
        return self.with_ops(instead)

    def _before(self, op: Op) -> Op | None:
        """Return the write into the same dimension whose result this one alone reads."""
        whole, place = op.inputs[0], place_of(op)
        maker = self.maker.get(whole)
        if maker is None or place is None or maker.target not in WRITES or self.uses[whole] != 1:
            return None
        written = place_of(maker)
        return maker if written is not None and written.dim == place.dim and are_together(op, maker) else None

    def _instead_of(self, chain: list[Op]) -> dict[Op, list[Op]]:
        """Return what comes instead of the writes of a chain, the last of which comes first; nothing if they stay."""
        base, last = chain[-1].inputs[0], chain[0]
        pieces = _lasting(chain)
        if len(chain) < 2 or base not in self.maker or pieces is None:
            return {}
        made = OpsInstead(last, self.names)
        shape, dim = last.outputs[0].shape, next(iter(pieces.values()))[1].dim
        is_zero = self.maker[base].target in ALL_ZEROS
        members = []
        for span, is_piece in with_gaps(list(pieces), shape[dim]):
            if is_piece:
                members.append(made.with_dim(*pieces[span]))
            elif is_zero:
                members.append(made.zeros(dim, span))
            else:
                part = made.part_shape(dim, span)
                members.append(made.add(SLICE, [base], ["self"], part, dim=dim, start=span[0], end=span[1]))
        if len(members) > 1:
            made.concatenated(dim, members)
        return {op: [] for op in chain} | {last: made.ended()} if made.ops else {}


def _lasting(chain: list[Op]) -> dict[Span, tuple[Tensor, Place]] | None:
    """Return what remains of the writes of a chain, the last of which comes first; None if one remains in part."""
    pieces: dict[Span, tuple[Tensor, Place]] = {}
    for op in chain:
        place, piece = place_of(op), op.inputs[1]
        if place is None or piece.dtype is not op.outputs[0].dtype:
            return None
        begin, end = place.span
        if any(a <= begin and end <= b for a, b in pieces):
            continue
        if any(map(place.overlaps, pieces)):
            return None
        pieces[place.span] = piece, place
    return pieces
