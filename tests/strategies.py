"""Hypothesis strategies: random graphs, training graphs with blocks, schedules' sizes and tile mappings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.types import UNKNOWN_SOURCE, DType, Leg, Role, Source

# No assertion on time: the first example also pays for imports.
settings.register_profile("torchipu", deadline=None, max_examples=60)
settings.load_profile("torchipu")

SIDE = 3  # graphs are made of square matrices, so that any op fits any operand

Block = tuple[str, int | None]


@dataclass
class GraphBuilder:
    """Writes graphs for tests: each method appends an op and returns its result."""

    name: str = "main"
    dtype: DType = DType.FLOAT
    inputs: list[Tensor] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    updates: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    leg: Leg = Leg.FORWARD
    block: Block | None = None
    source: Source = UNKNOWN_SOURCE

    def input(
        self, name: str, role: Role = Role.INPUT, shape: Sequence[int] = (SIDE, SIDE), dtype: DType | None = None,
    ) -> Tensor:
        """Add an input of the graph."""
        self.inputs.append(Tensor(name, tuple(shape), dtype or self.dtype, role))
        return self.inputs[-1]

    def op(
        self, target: str, *operands: tuple[str, Tensor], shape: Sequence[int] | None = None,
        dtype: DType | None = None, **attrs: object,
    ) -> Tensor:
        """Add an op with one result, by default of the first operand's shape and dtype."""
        like = operands[0][1] if operands else None
        result = Tensor(
            f"t{len(self.ops)}", tuple(shape) if shape is not None else like.shape, dtype or like.dtype,
            Role.GRADIENT if self.leg is Leg.BACKWARD else Role.ACTIVATION,
        )
        self.ops.append(Op(
            kind=target.split(".")[1], inputs=tuple(tensor for _, tensor in operands), outputs=(result,), attrs=attrs,
            target=target, operands=tuple(name for name, _ in operands), source=self.source, leg=self.leg,
            block=self.block,
        ))
        return result

    def unary(self, name: str, value: Tensor) -> Tensor:
        """Add ``aten.<name>.default``."""
        return self.op(f"aten.{name}.default", ("self", value))

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """Add an elementwise sum."""
        return self.op("aten.add.Tensor", ("self", left), ("other", right), alpha=1)

    def mul(self, left: Tensor, right: Tensor) -> Tensor:
        """Add an elementwise product."""
        return self.op("aten.mul.Tensor", ("self", left), ("other", right))

    def mm(self, left: Tensor, right: Tensor) -> Tensor:
        """Add a matrix product."""
        return self.op("aten.mm.default", ("self", left), ("mat2", right), shape=(left.shape[0], right.shape[1]))

    def view(self, value: Tensor, size: Sequence[int]) -> Tensor:
        """Add a view."""
        return self.op("aten.view.default", ("self", value), shape=size, size=list(size))

    def graph(self, *outputs: Tensor) -> Graph:
        """Return what was written."""
        return Graph(self.name, tuple(self.inputs), tuple(outputs), tuple(self.ops), tuple(self.updates))


UNARY = ("relu", "tanh", "neg", "t", "t", "alias", "detach", "clone")


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 14) -> Graph:
    """Graphs of square matrices with no-ops, repetitions, dead ops and possibly a state that is updated."""
    build = GraphBuilder()
    values = [build.input("x"), build.input("w", Role.WEIGHT)]
    if draw(st.booleans()):
        values.append(build.input("running", Role.BUFFER))
    for _ in range(draw(st.integers(0, max_ops))):
        build.block = draw(st.sampled_from([None, ("A", 0), ("B", 0)]))
        values.append(_random_op(draw, build, values))
    for state in build.inputs[1:]:
        if draw(st.booleans()):
            build.updates.append((state, draw(st.sampled_from(values))))
    return build.graph(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))


def _random_op(draw: st.DrawFn, build: GraphBuilder, values: list[Tensor]) -> Tensor:
    pick: Callable[[], Tensor] = lambda: draw(st.sampled_from(values))  # noqa: E731
    kind = draw(st.sampled_from(["unary", "unary", "add", "mul", "mm", "view", "transpose"]))
    if kind == "unary":
        return build.unary(draw(st.sampled_from(UNARY)), pick())
    if kind == "view":
        return build.view(pick(), (SIDE, SIDE))
    if kind == "transpose":
        dims = draw(st.sampled_from([(0, 1), (0, 0), (1, -1)]))
        return build.op("aten.transpose.int", ("self", pick()), dim0=dims[0], dim1=dims[1])
    return getattr(build, kind)(pick(), pick())


@st.composite
def block_lists(draw: st.DrawFn, max_blocks: int = 5, num_ipus: int = 4) -> list[Block]:
    """Blocks of a model in order, each with an IPU; IPUs may be visited again."""
    count = draw(st.integers(1, max_blocks))
    return [(f"B{index}", draw(st.integers(0, num_ipus - 1))) for index in range(count)]


@st.composite
def training_graphs(draw: st.DrawFn, blocks: Sequence[Block] | None = None) -> Graph:
    """A chain of ``tanh(x @ w)`` layers with its backward and a plain update; annotations are partly missing.

    Each block has one to three layers. A layer after the first of a block may lack its annotation, as may the
    backward op of such a layer, which then has the forward's source.
    """
    blocks = draw(block_lists()) if blocks is None else blocks
    build = GraphBuilder()
    value, layers = build.input("x"), []
    for block in blocks:
        for index in range(draw(st.integers(1, 3))):
            build.block = None if index and draw(st.booleans()) else block
            build.source = Source("model.py", len(layers) + 1, f"layer {len(layers)}")
            weight = build.input(f"w{len(layers)}", Role.WEIGHT)
            product = build.mm(value, weight)
            result = build.unary("tanh", product)
            layers.append((build.block, build.source, value, weight, result))
            value = result
    loss, gradient, gradients = value, value, []
    build.leg = Leg.BACKWARD
    for block, source, operand, weight, result in reversed(layers):
        build.block, build.source = block, source
        slope = build.op("aten.tanh_backward.default", ("grad_output", gradient), ("output", result))
        gradients.append((weight, build.mm(build.op("aten.t.default", ("self", operand)), slope)))
        gradient = build.mm(slope, build.op("aten.t.default", ("self", weight)))
    build.leg, build.block, build.source = Leg.UPDATE, None, UNKNOWN_SOURCE
    for weight, weight_gradient in gradients:
        step = build.op("aten.mul.Scalar", ("self", weight_gradient), other=-0.1)
        build.updates.append((weight, build.add(weight, step)))
    return build.graph(loss)


@st.composite
def mappings(draw: st.DrawFn, num_tiles: int = 8, max_elements: int = 6) -> TileMapping:
    """Mappings that cover a variable once, with runs of one or more elements on any tiles."""
    runs, position = [], 0
    for _ in range(draw(st.integers(0, 8))):
        count = draw(st.integers(1, max_elements))
        runs.append((draw(st.integers(0, num_tiles - 1)), position, position + count))
        position += count
    return TileMapping(tuple(runs))


def pipelines(training: bool) -> st.SearchStrategy[tuple[int, int]]:
    """``(stages, micro-batches)`` that fill a pipeline."""
    return st.integers(1, 6).flatmap(
        lambda stages: st.tuples(
            st.just(stages), st.integers((2 * stages - 1) if training else stages, 3 * stages + 4)
        )
    )
