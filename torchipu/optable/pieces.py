"""Where pieces of a tensor lie that ops read, write, or surround with zeros: neighbouring elements of a dimension."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from torchipu.ir.graph import NO_ATTRS, Graph, Op, Tensor
from torchipu.optable.spec import lookup

READS = frozenset({"aten.select.int", "aten.select_copy.int", "aten.slice.Tensor", "aten.slice_copy.Tensor"})
WRITES = frozenset({"aten.select_scatter.default", "aten.slice_scatter.default"})
PADS = frozenset({"aten.select_backward.default", "aten.slice_backward.default"})
CAT, SLICE, UNSQUEEZE, ZEROS = "aten.cat.default", "aten.slice.Tensor", "aten.unsqueeze.default", "aten.zeros.default"

Span = tuple[int, int]
"""Where a piece begins, and where it has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a piece lies.

    Attributes:
        dim: The dimension; not negative.
        span: Its elements there.
        has_dim: Whether the piece has that dimension; one that was selected has not.
    """

    dim: int
    span: Span
    has_dim: bool

    def overlaps(self, span: Span) -> bool:
        """Whether the piece and another of the same dimension share elements."""
        return self.span[0] < span[1] and span[0] < self.span[1]


def place_of(op: Op) -> Place | None:
    """Return where an op's piece lies in the whole; None where calls decide it, and for one that is empty or has gaps.

    Args:
        op: Of `READS`, `WRITES` or `PADS`.
    """
    whole = op.inputs[0] if op.target in READS else op.outputs[0]
    dim = op.integer("dim", 0) % len(whole.shape)
    size = whole.shape[dim]
    if "select" in op.target:
        if not _are_known(size, op.attrs.get("index")):
            return None
        begin = op.integer("index") % size
        return Place(dim, (begin, begin + 1), has_dim=False)
    given = [op.attrs.get(name) for name in ("start", "end", "step")]
    if not _are_known(size, *(number for number in given if number is not None)) or op.integer("step", 1) != 1:
        return None
    begin, end, _ = slice(op.integer("start", None), op.integer("end", None)).indices(size)
    return Place(dim, (begin, end), has_dim=True) if begin < end else None


def _are_known(*numbers: object) -> bool:
    """Whether these are numbers, and not such as each call brings."""
    return all(type(number) is int for number in numbers)


def are_together(first: Op, second: Op) -> bool:
    """Whether two ops run in the same leg, block and place."""
    return (first.leg, first.block, first.placement) == (second.leg, second.block, second.placement)


class Readers:
    """Who makes each value of a graph, and how often it is read.

    Args:
        graph: Whose ops are looked at; an output and an update are readers too.

    Attributes:
        graph: The same.
        maker: By value that an op makes.
        uses: By value.
        names: For new values.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.maker = {tensor: op for op in graph.ops for tensor in op.outputs}
        self.uses = Counter(tensor for op in graph.ops for tensor in op.inputs)
        self.uses.update((*graph.outputs, *(value for _, value in graph.updates)))
        self.names = new_names(graph)

    def with_ops(self, instead: Mapping[Op, Sequence[Op]]) -> Graph:
        """Return the graph with others in the place of some of its ops; the same object where there are none."""
        if not instead:
            return self.graph
        return replace(self.graph, ops=tuple(new for op in self.graph.ops for new in instead.get(op, [op])))


def new_names(graph: Graph) -> Iterator[str]:
    """Yield names that no tensor of a graph has."""
    taken = {tensor.name for tensor in graph.inputs} | {tensor.name for op in graph.ops for tensor in op.outputs}
    return (name for number in count() if (name := f"pieces.{number}") not in taken)


@dataclass(slots=True)
class OpsInstead:
    """Ops that come instead of another.

    Attributes:
        root: The other, whose leg, block, placement and line they have, and whose result the last of them makes.
        names: For what the others make.
        ops: So far.
    """

    root: Op
    names: Iterator[str]
    ops: list[Op] = field(default_factory=list)

    def add(
        self, target: str, inputs: Sequence[Tensor], operands: Sequence[str], shape: tuple[int, ...], **attrs: object,
    ) -> Tensor:
        """Append an op; return its result, of this shape and the type of the root's."""
        spec = lookup(target)
        assert spec is not None, target
        made = replace(self.root.outputs[0], name=next(self.names), shape=shape)
        self.ops.append(replace(
            self.root, kind=spec.kind, inputs=tuple(inputs), outputs=(made,), attrs=attrs or NO_ATTRS, target=target,
            operands=tuple(operands),
        ))
        return made

    def with_dim(self, piece: Tensor, place: Place) -> Tensor:
        """Return a piece with the dimension along which it lies."""
        if place.has_dim:
            return piece
        shape = self.part_shape(place.dim, place.span)
        return self.add(UNSQUEEZE, [piece], ["self"], shape, dim=place.dim)

    def zeros(self, dim: int, span: Span) -> Tensor:
        """Return zeros for some elements of a dimension."""
        shape = self.part_shape(dim, span)
        return self.add(ZEROS, [], [], shape, size=shape)

    def part_shape(self, dim: int, span: Span) -> tuple[int, ...]:
        """Return the shape of some elements of a dimension of the root's result."""
        shape = self.root.outputs[0].shape
        return (*shape[:dim], span[1] - span[0], *shape[dim + 1 :])

    def concatenated(self, dim: int, members: Sequence[Tensor]) -> Tensor:
        """Return parts of a dimension put together."""
        return self.add(CAT, members, [f"tensors[{'x' * len(members)}]"], self.root.outputs[0].shape, dim=dim)

    def ended(self) -> list[Op]:
        """Return the ops, the last of which makes what the root made."""
        return [*self.ops[:-1], replace(self.ops[-1], outputs=self.root.outputs)]


def with_gaps(spans: Sequence[Span], size: int) -> Iterator[tuple[Span, bool]]:
    """Yield spans that share nothing in order, and the gaps between, before and behind; and whether each is no gap.

    Args:
        spans: In any order.
        size: Of the dimension.
    """
    at = 0
    for begin, end in sorted(spans):
        if at < begin:
            yield (at, begin), False
        yield (begin, end), True
        at = end
    if at < size:
        yield (at, size), False
