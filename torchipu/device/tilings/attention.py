"""Attention as its products, and the softmax between them, a vertex a run of rows of scores."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.products import Factor, FactorElements, Multiplication, line, plane
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import PAD, Numbers, Region, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run

SCORES, PROBABILITIES = "scores", "probabilities"
GRADIENTS, SCORE_GRADIENTS = "gradients of probabilities", "gradients of scores"


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of attention.

    Attributes:
        batch: Samples.
        heads: Heads of the queries of each.
        key_heads: Heads of its keys and values.
        queries: Queries of a head.
        keys: Keys of a head.
        width: Elements of a query.
    """

    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    width: int

    @classmethod
    def of(cls, op: Op) -> Heads:
        """Return the sizes of an op."""
        (batch, heads, queries, width), key = op.needed("query").shape, op.needed("key").shape
        return cls(batch, heads, key[1], queries, key[2], width)

    def of_queries(self, step: int, inputs: int) -> FactorElements:
        """Return the elements of what has a vector for each query; steps are those along the factor."""
        return line(step, self.queries * self.width, inputs)

    def of_scores(self, step: int, inputs: int) -> FactorElements:
        """Return the elements of what has a number for each query and key."""
        return line(step, self.queries * self.keys, inputs)

    @property
    def shared(self) -> int:
        """Heads of queries that share the keys and values of one."""
        return self.heads // self.key_heads

    def of_sharers(self, size: int, step: int, inputs: int) -> FactorElements:
        """Return the elements of what the heads that share keys have, one head's queries behind the other's.

        Args:
            size: Elements of a head.
            step: From one position or output to the next.
            inputs: From one query to the next.
        """

        def elements(groups: Numbers, across: Numbers, summands: Numbers, phase: int) -> Numbers:
            member, query = np.divmod(summands, self.queries)
            return (groups * self.shared + member) * size + across * step + query * inputs

        return elements

    def of_keys(self, step: int, inputs: int) -> FactorElements:
        """Return the elements of what has a vector for each key, which heads of queries may share."""

        def elements(groups: Numbers, across: Numbers, summands: Numbers, phase: int) -> Numbers:
            head = groups // self.shared
            return head * (self.keys * self.width) + across * step + summands * inputs

        return elements


def _scale(op: Op) -> float:
    return float(op.number("scale", 1.0 / math.sqrt(op.needed("query").shape[3])))


# --------------------------------------------------------------------------- products
def scores(op: Op) -> Multiplication:
    """Return the scores of queries and keys."""
    h = Heads.of(op)
    return Multiplication(
        Factor("query", h.of_queries(h.width, 1)), Factor("key", h.of_keys(h.width, 1)), h.width, SCORES,
        plane(h.queries * h.keys, h.keys, 1), alpha=_scale(op), dtype=DType.FLOAT,
    )


def results(op: Op) -> Multiplication:
    """Return the sums of values by their probabilities."""
    h = Heads.of(op)
    return Multiplication(
        Factor(PROBABILITIES, h.of_scores(h.keys, 1), dtype=DType.FLOAT),
        Factor("value", h.of_keys(1, h.width), inputs_first=True), h.keys, "out",
        plane(h.queries * h.width, h.width, 1),
    )


def gradients(op: Op) -> Multiplication:
    """Return the gradients of the probabilities."""
    h = Heads.of(op)
    return Multiplication(
        Factor("grad_out", h.of_queries(h.width, 1)), Factor("value", h.of_keys(h.width, 1)), h.width, GRADIENTS,
        plane(h.queries * h.keys, h.keys, 1), dtype=DType.FLOAT,
    )


def value_gradient(op: Op) -> Multiplication:
    """Return the gradient of the values: a sum over the queries of all heads that share them."""
    h = Heads.of(op)
    return Multiplication(
        Factor(PROBABILITIES, h.of_sharers(h.queries * h.keys, 1, h.keys), inputs_first=True, dtype=DType.FLOAT),
        Factor("grad_out", h.of_sharers(h.queries * h.width, 1, h.width), inputs_first=True), h.queries * h.shared,
        "out2", plane(h.keys * h.width, h.width, 1), groups=h.batch * h.key_heads,
    )


def key_gradient(op: Op) -> Multiplication:
    """Return the gradient of the keys; see ``value_gradient``."""
    h = Heads.of(op)
    return Multiplication(
        Factor(SCORE_GRADIENTS, h.of_sharers(h.queries * h.keys, 1, h.keys), inputs_first=True, dtype=DType.FLOAT),
        Factor("query", h.of_sharers(h.queries * h.width, 1, h.width), inputs_first=True), h.queries * h.shared,
        "out1", plane(h.keys * h.width, h.width, 1), alpha=_scale(op), groups=h.batch * h.key_heads,
    )


def query_gradient(op: Op) -> Multiplication:
    """Return the gradient of the queries."""
    h = Heads.of(op)
    return Multiplication(
        Factor(SCORE_GRADIENTS, h.of_scores(h.keys, 1), dtype=DType.FLOAT),
        Factor("key", h.of_keys(1, h.width), inputs_first=True), h.keys, "out",
        plane(h.queries * h.width, h.width, 1), alpha=_scale(op),
    )


# --------------------------------------------------------------------------- softmax
def softmax(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return vertices that make probabilities of scores, and the logarithms of their sums.

    Args:
        op: Attention.
        runs: Of the scores; a row belongs to the vertex in whose run it begins.
        part: The only one.
    """
    tiles, begin, end = _rows(op, runs)

    def code(sizes: Sizes) -> Graph:
        written = Code()
        value = _masked(written, op, sizes)
        probabilities = written.unary("_safe_softmax", value, dim=1)
        attrs: dict[str, object] = {"dim": (1,), "keepdim": False}
        (sums,) = written.run("aten.logsumexp.default", [(DType.FLOAT, sizes[:1])], attrs, self=value)
        # Of queries whose keys are all masked it counts as 0, so that backward finds probabilities of 0.
        is_empty, zero = written.compared("eq", sums, -math.inf), written.full(0.0, DType.FLOAT)
        logarithms = written.chosen(is_empty, zero, sums, DType.FLOAT)
        return written.graph([probabilities, logarithms], [DType.FLOAT, op.outputs[1].dtype])

    keys = Heads.of(op).keys
    writes = ranges(PROBABILITIES, begin * keys, end * keys, DType.FLOAT), ranges("out1", begin, end)
    return VertexSet(tiles, _given(op, begin, end), writes, (end - begin).reshape(-1, 1), code)


def softmax_again(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return vertices that make probabilities of scores and of the logarithms of their sums; see ``softmax``."""
    tiles, begin, end = _rows(op, runs)
    logarithms = op.needed("logsumexp")

    def code(sizes: Sizes) -> Graph:
        written = Code()
        value = _masked(written, op, sizes)
        above = written.binary("sub", value, written.given(logarithms.dtype, sizes[0], 1))
        return written.graph([written.unary("exp", above)])

    keys = Heads.of(op).keys
    reads = (*_given(op, begin, end), ranges("logsumexp", begin, end))
    writes = (ranges(PROBABILITIES, begin * keys, end * keys, DType.FLOAT),)
    return VertexSet(tiles, reads, writes, (end - begin).reshape(-1, 1), code)


def softmax_gradient(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return vertices that make gradients of scores of those of probabilities and of the results; see ``softmax``."""
    tiles, begin, end = _rows(op, runs)
    h = Heads.of(op)
    dtype = op.needed("grad_out").dtype

    def code(sizes: Sizes) -> Graph:
        written = Code()
        gradients, probabilities = (written.given(DType.FLOAT, sizes[0], h.keys) for _ in range(2))
        results, given = (written.given(dtype, sizes[0], h.width) for _ in range(2))
        mean = written.summed(written.binary("mul", results, given, DType.FLOAT))
        return written.graph([written.binary("mul", written.binary("sub", gradients, mean), probabilities)])

    reads = (
        *(ranges(name, begin * h.keys, end * h.keys, DType.FLOAT) for name in (GRADIENTS, PROBABILITIES)),
        *(ranges(name, begin * h.width, end * h.width) for name in ("given.out", "grad_out")),
    )
    write = ranges(SCORE_GRADIENTS, begin * h.keys, end * h.keys, DType.FLOAT)
    return VertexSet(tiles, reads, (write,), (end - begin).reshape(-1, 1), code)


def _rows(op: Op, runs: TileMapping) -> tuple[Numbers, Numbers, Numbers]:
    """Return tile, first row and that after the last one of each vertex that has any."""
    keys = Heads.of(op).keys
    tiles, begin, end = one_a_run(runs)
    first, last = -(-begin // keys), -(-end // keys)
    some = last > first
    return tiles[some], first[some], last[some]


def _given(op: Op, begin: Numbers, end: Numbers) -> tuple[Region, ...]:
    """Return what vertices read of the scores, and of the mask if there is one; later keys count as minus infinity."""
    h = Heads.of(op)
    rows = np.concatenate([np.arange(b, e, dtype=np.int64) for b, e in zip(begin, end, strict=True)])
    keys = np.arange(h.keys, dtype=np.int64)
    elements = rows[:, None] * h.keys + keys
    counts = (end - begin) * h.keys
    if op.flag("is_causal"):
        elements = np.where(keys > (rows % h.queries)[:, None], PAD, elements)
    reads = [listed(SCORES, elements, counts, DType.FLOAT, pad=-math.inf)]
    mask = op.operand("attn_mask")
    if mask is not None:
        numbers = np.arange(mask.num_elements, dtype=np.int64).reshape(mask.shape)
        spread = np.broadcast_to(numbers, (h.batch, h.heads, h.queries, h.keys))
        sample, head, query = np.unravel_index(rows, (h.batch, h.heads, h.queries))
        reads.append(listed("attn_mask", spread[sample, head, query], counts))
    return tuple(reads)


def _masked(code: Code, op: Op, sizes: Sizes) -> Tensor:
    """Return the scores of some rows, the mask added to them if there is one."""
    shape, mask = (sizes[0], Heads.of(op).keys), op.operand("attn_mask")
    value = code.given(DType.FLOAT, *shape)
    return value if mask is None else code.binary("add", value, code.given(mask.dtype, *shape))
