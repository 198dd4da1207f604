"""Products on the matrix unit: each vertex multiplies a block of the left operand by one of the right one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from torchipu.device.tilings.blocks import blocks, tile_of_each
from torchipu.device.tilings.code import Code
from torchipu.device.tilings.cut import GROUPS, INPUTS, OUTPUTS, POSITIONS, Cut
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, listed
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet
from torchipu.optable.random_streams import ROUNDING_STREAM

Elements = Callable[[Numbers, Numbers, Numbers], Numbers]
"""``(group, position, output) -> element``, of arrays that are broadcast."""
FactorElements = Callable[[Numbers, Numbers, Numbers, int], Numbers]
"""``(group, position or output, input, phase) -> element``, `PAD` where a zero stands, of arrays that are broadcast."""
Range = tuple[int, int]
ROUNDING = ("half_overflow", ROUNDING_STREAM)


@dataclass(frozen=True, slots=True)
class Factor:
    """The left or the right operand of a product.

    Attributes:
        name: Label of the operand, or name of partials.
        elements: Which of its elements stands where.
        inputs_first: Whether vertices take it with the inputs before positions or outputs.
        dtype: Of partials; None for an operand.
    """

    name: str
    elements: FactorElements
    inputs_first: bool = False
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Addend:
    """What is added to a product.

    Attributes:
        name: Label of the operand.
        elements: Which of its elements stands where.
        varies: Whether it differs between groups, positions and outputs.
        factor: What it is multiplied by.
        dtype: Of partials; None for an operand.
    """

    name: str
    elements: Elements
    varies: tuple[bool, bool, bool]
    factor: float = 1.0
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class Multiplication:
    """A product of each of several groups, ``[positions, inputs] x [inputs, outputs]``, by the elements that meet.

    Attributes:
        left: Left operand.
        right: Right operand.
        inputs: Summands. With phases their number in the phase that has most; in others, `PAD` stands for the rest.
        result: Label of the result, or name of the partials that it is.
        elements: Where in the result each element goes.
        outputs_first: Whether vertices compute it with the outputs before the positions.
        addend: What is added, if anything.
        alpha: What the product is multiplied by before.
        dtype: Of partials; None for a result.
        phases: First position of each phase, and how many positions there are: positions of a phase take the same
            elements of the right operand. Empty where there are no phases.
        attrs: Of the product that a vertex computes.
        target: Of the product that a vertex computes.
        groups: How many there are; None for as many as the product was cut up for.
    """

    left: Factor
    right: Factor
    inputs: int
    result: str
    elements: Elements
    outputs_first: bool = False
    addend: Addend | None = None
    alpha: float = 1.0
    dtype: DType | None = None
    phases: tuple[int, ...] = ()
    attrs: dict[str, object] = field(default_factory=dict)
    target: str = "aten.bmm.default"
    groups: int | None = None

    def of(self, cut: Cut) -> Cut:
        """Return how the product is cut up that has been planned as another one with as many results."""
        cut = cut.with_inputs(self.inputs)
        return cut if self.groups is None else cut.with_groups(self.groups)

    @property
    def sums(self) -> str:
        """Name of the partials of the result."""
        return f"sums of {self.result}"

    def pieces(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield phase, begin and end of each run of positions that are of one phase."""
        if not self.phases:
            yield 0, begin, end
            return
        for phase in range(len(self.phases) - 1):
            low, high = max(begin, self.phases[phase]), min(end, self.phases[phase + 1])
            if low < high:
                yield phase, low, high


Describe = Callable[[Op], Multiplication]


def line(step: int, group: int = 0, inputs: int = 0, first: int = 0) -> FactorElements:
    """Return the elements of a factor that has strides.

    Args:
        step: From one position or output to the next.
        group: From one group to the next.
        inputs: From one input to the next.
        first: The first element.
    """

    def elements(groups: Numbers, across: Numbers, summands: Numbers, phase: int) -> Numbers:
        return first + groups * group + across * step + summands * inputs

    return elements


def plane(group: int, position: int, output: int) -> Elements:
    """Return the elements of a result or an addend that has strides."""

    def elements(groups: Numbers, positions: Numbers, outputs: Numbers) -> Numbers:
        return groups * group + positions * position + outputs * output

    return elements


def addend_of(op: Op, columns: bool = True) -> Addend | None:
    """Return what ``self`` adds to the product of a record that scales it by ``beta``; None where there is none.

    Args:
        op: The op, whose result is ``[positions, outputs]``, with groups before them or not.
        columns: Whether the result has outputs; else it is ``[positions]``.
    """
    factor = float(op.number("beta", 1))
    if op.operands[0] != "self" or len(op.operands) < 3 or factor == 0:
        return None
    shape = (*op.inputs[0].shape, *(() if columns else (1,)))
    shape = (1,) * (3 - len(shape)) + shape
    steps = [0 if shape[axis] == 1 else prod(shape[axis + 1 :]) for axis in range(3)]
    groups, positions, outputs = (size > 1 for size in shape)
    return Addend("self", plane(*steps), (groups, positions, outputs), factor)


# --------------------------------------------------------------------------- the matrix unit
def multiply(
    describe: Describe, cut: Cut, op: Op, runs: TileMapping, part: int, *, finishes: bool = True,
) -> VertexSet | None:
    """Return the vertices of the matrix unit; they write results, or partials where these are not all of the inputs.

    Args:
        describe: Tells what meets what.
        cut: How the product is cut up.
        op: The op.
        runs: Of the vertices.
        part: Which blocks they take.
        finishes: Whether they write results where they have all of the inputs; else another set rounds partials.
    """
    product = describe(op)
    cut = product.of(cut)
    step = cut.step(part)
    if step is None:
        return None
    begin, end = cut.block(step)
    some = np.flatnonzero((end > begin).all(axis=1))
    if not len(some):
        return None
    held = _Held(op, product)
    block = _Block(product, begin[some], end[some])
    accumulates = step[INPUTS] > 0
    finishes = finishes and cut.splits[INPUTS] == 1 and step[INPUTS] == cut.parts[INPUTS] - 1
    sums = _sums_of(product, cut, block, some, held.sums_dtype)
    reads = [block.left(), block.right()]
    reads += [sums] if accumulates else []
    reads += [block.addend(product.addend)] if finishes and product.addend is not None else []
    writes = (block.result() if finishes else sums,)
    # What differs from part to part belongs to the sizes: vertices of the same ones share their kernels.
    sizes = np.insert(block.sizes(), 0, [[accumulates], [finishes]], axis=1)

    def code(sizes: Sizes) -> Graph:
        return _multiplied(product, held, sizes[2:], accumulates=accumulates, finishes=finishes)

    return VertexSet(tile_of_each(runs)[some], tuple(reads), writes, sizes, code)


def add_sums(describe: Describe, cut: Cut, op: Op, runs: TileMapping, part: int) -> VertexSet | None:
    """Return the vertices that add up what vertices with different inputs have made: a share of the results each.

    Where one vertex has had all of the inputs, they round what it has made.

    Args:
        describe: Tells what meets what.
        cut: How the product is cut up.
        op: The op.
        runs: Of the vertices.
        part: All is done in the first one.
    """
    if part:
        return None
    product = describe(op)
    cut = product.of(cut)
    held = _Held(op, product)
    offset, results = _room(cut)
    tiles_of_inputs = cut.splits[INPUTS]
    number = np.arange(cut.num_vertices, dtype=np.int64)
    share = -(-results // tiles_of_inputs)
    low = np.minimum(number % tiles_of_inputs * share, results)
    high = np.minimum(low + share, results)
    some = np.flatnonzero(high > low)
    if not len(some):
        return None
    begin, end = cut.whole()
    given = np.flatnonzero((end > begin)[:tiles_of_inputs, INPUTS])
    first_of_box = offset[some - some % tiles_of_inputs]
    begins = first_of_box[:, None] + given[None, :] * results[some][:, None] + low[some][:, None]
    count = np.repeat((high - low)[some], len(given))
    sums = Region(
        product.sums, begins.reshape(-1), count, np.ones_like(count),
        np.arange(len(some) + 1, dtype=np.int64) * len(given), held.sums_dtype,
    )
    is_first = some[np.concatenate(([True], np.diff(some // tiles_of_inputs) > 0))]
    boxes = [_ranges(begin[vertex], end[vertex]) for vertex in is_first]
    reads = [sums]
    if product.addend is not None:
        reads.append(_shared_out(
            product.addend.name, product.addend.elements, product, boxes, (high - low)[some], product.addend.dtype,
        ))
    result = _shared_out(product.result, product.elements, product, boxes, (high - low)[some], product.dtype)

    def code(sizes: Sizes) -> Graph:
        written = Code()
        partials = written.given(held.sums_dtype, len(given), sizes[0])
        addend = held.addend(written, sizes)
        value = written.summed(partials, dim=0, keepdim=False, **held.rounding)
        return written.graph([_finished(written, product, held, value, addend)], [held.result_dtype])

    return VertexSet(tile_of_each(runs)[some], tuple(reads), (result,), (high - low)[some].reshape(-1, 1), code)


class _Held:
    """Types of what a product touches.

    Args:
        op: The op.
        product: A product of it.
    """

    def __init__(self, op: Op, product: Multiplication) -> None:
        tensors = dict(zip(operand_labels(op), op.inputs, strict=True))
        self.product = product
        self.left_dtype = product.left.dtype or tensors[product.left.name].dtype
        self.right_dtype = product.right.dtype or tensors[product.right.name].dtype
        self.addend_dtype = None if product.addend is None else (
            product.addend.dtype or tensors[product.addend.name].dtype
        )
        results = {("out" if index == 0 else f"out{index}"): tensor.dtype for index, tensor in enumerate(op.outputs)}
        self.result_dtype = product.dtype or results[product.result]
        self.has_half_partials = op.attrs.get("partials") == "half" and self.result_dtype is DType.HALF
        self.sums_dtype = DType.HALF if self.has_half_partials else DType.FLOAT
        self.rounding = {name: op.attrs[name] for name in ROUNDING if name in op.attrs}
        self.attrs = {**product.attrs, **self.rounding, **({"partials": "half"} if self.has_half_partials else {})}

    def addend(self, code: Code, shape: Sizes) -> Tensor | None:
        """Return what a vertex reads of the addend."""
        return None if self.addend_dtype is None else code.given(self.addend_dtype, *shape)


# --------------------------------------------------------------------------- regions
def _ranges(begin: Numbers, end: Numbers) -> tuple[Range, Range, Range]:
    """Return begin and end of the groups, positions and outputs of a vertex."""
    groups, positions, outputs = (
        (int(begin[axis]), int(end[axis])) for axis in (GROUPS, POSITIONS, OUTPUTS)
    )
    return groups, positions, outputs


def _grid(*ranges: Range) -> list[Numbers]:
    """Return the numbers in ranges, each along a dimension of its own."""
    return [
        np.arange(*one, dtype=np.int64).reshape((1,) * axis + (-1,) + (1,) * (len(ranges) - axis - 1))
        for axis, one in enumerate(ranges)
    ]


def _listing(elements: Elements, box: tuple[Range, Range, Range], *, outputs_first: bool) -> Numbers:
    """List the elements of a box of groups, positions and outputs."""
    return _spread(elements(*_grid(*box)), box, turned=outputs_first)


def _spread(elements: Numbers, box: Iterable[Range], *, turned: bool) -> Numbers:
    """Return the elements of all places of a box, of which they may be the same along a dimension."""
    shape = tuple(high - low for low, high in box)
    made = elements if elements.shape == shape else np.broadcast_to(elements, shape)
    return (made.swapaxes(1, 2) if turned else made).reshape(-1)


class _Block:
    """The blocks that vertices take in one step.

    Args:
        product: What is multiplied.
        begin: ``[vertices, 4]``.
        end: ``[vertices, 4]``.
    """

    def __init__(self, product: Multiplication, begin: Numbers, end: Numbers) -> None:
        self.product = product
        self.begin, self.end = begin, end
        self.groups, self.positions, self.outputs, self.inputs = (
            list(zip(begin[:, axis].tolist(), end[:, axis].tolist(), strict=True))
            for axis in (GROUPS, POSITIONS, OUTPUTS, INPUTS)
        )

    def sizes(self) -> Numbers:
        """Return groups, outputs, inputs, and the positions of each phase that a vertex has."""
        cut = self.end - self.begin
        apart = {
            one: [high - low for _, low, high in self.product.pieces(*one)] for one in set(self.positions)
        }
        table = np.zeros((len(cut), max(map(len, apart.values()))), np.int64)
        for vertex, one in enumerate(self.positions):
            table[vertex, : len(apart[one])] = apart[one]
        return np.concatenate((cut[:, [GROUPS, OUTPUTS, INPUTS]], table), axis=1)

    def left(self) -> Region:
        """Return what vertices read of the left operand, phase by phase."""
        factor = self.product.left

        def make(key: tuple[Range, Range, Range]) -> Numbers:
            groups, positions, inputs = key
            return np.concatenate([
                _factor(factor, groups, (low, high), inputs, phase)
                for phase, low, high in self.product.pieces(*positions)
            ])

        keys = list(zip(self.groups, self.positions, self.inputs, strict=True))
        return blocks(factor.name, keys, make, factor.dtype)

    def right(self) -> Region:
        """Return what vertices read of the right operand, phase by phase."""
        factor = self.product.right

        def make(key: tuple[Range, Range, Range, tuple[int, ...]]) -> Numbers:
            groups, outputs, inputs, phases = key
            return np.concatenate([_factor(factor, groups, outputs, inputs, phase) for phase in phases])

        phases = {one: tuple(phase for phase, _, _ in self.product.pieces(*one)) for one in set(self.positions)}
        keys = list(zip(
            self.groups, self.outputs, self.inputs, (phases[one] for one in self.positions), strict=True,
        ))
        return blocks(factor.name, keys, make, factor.dtype)

    def result(self) -> Region:
        """Return what vertices write."""
        product = self.product
        keys = list(zip(self.groups, self.positions, self.outputs, strict=True))
        return blocks(
            product.result, keys,
            lambda box: _listing(product.elements, box, outputs_first=product.outputs_first), product.dtype,
        )

    def addend(self, addend: Addend) -> Region:
        """Return what vertices read of the addend: each element of it once."""
        sides = [
            side if varies else [(0, 1)] * len(side)
            for side, varies in zip((self.groups, self.positions, self.outputs), addend.varies, strict=True)
        ]
        return blocks(
            addend.name, list(zip(*sides, strict=True)),
            lambda box: _listing(addend.elements, box, outputs_first=self.product.outputs_first), addend.dtype,
        )


def _factor(factor: Factor, groups: Range, across: Range, inputs: Range, phase: int) -> Numbers:
    group, place, summand = _grid(groups, across, inputs)
    made = factor.elements(group, place, summand, phase)
    return _spread(made, (groups, across, inputs), turned=factor.inputs_first)


def _room(cut: Cut) -> tuple[Numbers, Numbers]:
    """Return where among the partials those of each vertex begin, and how many results it makes."""
    begin, end = cut.whole()
    results = (end - begin)[:, [GROUPS, POSITIONS, OUTPUTS]].prod(axis=1)
    return np.cumsum(results) - results, results


def _sums_of(product: Multiplication, cut: Cut, block: _Block, some: Numbers, dtype: DType) -> Region:
    """Return the partials of the block of each vertex: its part of the box of all that the vertex makes."""
    low, high = (bound[some][:, [GROUPS, POSITIONS, OUTPUTS]] for bound in cut.whole())
    begin, end = (bound[:, [GROUPS, POSITIONS, OUTPUTS]] for bound in (block.begin, block.end))
    keys = [tuple(row) for row in np.concatenate((begin - low, end - low, high - low), axis=1).tolist()]

    def make(key: tuple[int, ...]) -> Numbers:
        _, positions, outputs = key[6:]
        steps = (1, positions) if product.outputs_first else (outputs, 1)
        box = (key[0], key[3]), (key[1], key[4]), (key[2], key[5])
        return _listing(plane(positions * outputs, *steps), box, outputs_first=product.outputs_first)

    return blocks(product.sums, keys, make, dtype, shift=_room(cut)[0][some])


def _shared_out(
    name: str, elements: Elements, product: Multiplication, boxes: list[tuple[Range, Range, Range]], counts: Numbers,
    dtype: DType | None = None,
) -> Region:
    """Return elements of boxes, which vertices share one after another."""
    lists = [_listing(elements, box, outputs_first=product.outputs_first) for box in boxes]
    return listed(name, np.concatenate(lists), counts, dtype)


# --------------------------------------------------------------------------- code
def _multiplied(
    product: Multiplication, held: _Held, sizes: Sizes, *, accumulates: bool, finishes: bool,
) -> Graph:
    """Return the code of the matrix unit; ``sizes`` are those of `_Block.sizes`."""
    groups, outputs, inputs, *pieces = sizes
    pieces = [rows for rows in pieces if rows]
    positions = sum(pieces)
    shape = (groups, outputs, positions) if product.outputs_first else (groups, positions, outputs)
    code = Code()
    left = _taken(code, held.left_dtype, groups, [(rows, inputs) for rows in pieces], product.left)
    right = _taken(code, held.right_dtype, groups, [(outputs, inputs)] * len(pieces), product.right)
    sums = [code.given(held.sums_dtype, *shape)] if accumulates else []
    addend = None
    if finishes and product.addend is not None:
        varying = [size if varies else 1 for size, varies in zip(
            (groups, positions, outputs), product.addend.varies, strict=True)]
        if product.outputs_first:
            varying = [varying[0], varying[2], varying[1]]
        addend = held.addend(code, tuple(varying))
    lefts = _pieces(code, left, groups, [(rows, inputs) for rows in pieces], product.left)
    rights = _pieces(code, right, groups, [(outputs, inputs)] * len(pieces), product.right)
    made = [_product(code, product, held, *pair) for pair in zip(lefts, rights, strict=True)]
    value = made[0]
    if len(made) > 1:
        value = code.joined(made, 2 if product.outputs_first else 1)
    if accumulates:
        value = code.binary("add", sums[0], value, DType.FLOAT, **held.rounding)
    if not finishes:
        return code.graph([value], [held.sums_dtype])
    return code.graph([_finished(code, product, held, value, addend)], [held.result_dtype])


def _taken(code: Code, dtype: DType, groups: int, pieces: list[tuple[int, int]], factor: Factor) -> Tensor:
    """Return a factor as a vertex reads it: of one phase as matrices, else all in a row."""
    if len(pieces) == 1:
        across, inputs = pieces[0]
        return code.given(dtype, groups, *((inputs, across) if factor.inputs_first else (across, inputs)))
    return code.given(dtype, sum(groups * across * inputs for across, inputs in pieces))


def _pieces(code: Code, taken: Tensor, groups: int, pieces: list[tuple[int, int]], factor: Factor) -> list[Tensor]:
    """Return the matrices of each phase, inputs last."""
    made, begin = [], 0
    for across, inputs in pieces:
        value, count = taken, groups * across * inputs
        if len(pieces) > 1:
            value = code.shaped(
                code.sliced(taken, 0, begin, begin + count), groups,
                *((inputs, across) if factor.inputs_first else (across, inputs)),
            )
        begin += count
        made.append(code.turned(value) if factor.inputs_first else value)
    return made


def _product(code: Code, product: Multiplication, held: _Held, left: Tensor, right: Tensor) -> Tensor:
    """Return the product of matrices that have their inputs last."""
    first, second = (right, left) if product.outputs_first else (left, right)
    shape = (first.shape[0], first.shape[1], second.shape[1])
    return code.run(
        product.target, [(held.sums_dtype, shape)], held.attrs, self=first, mat2=code.turned(second),
    )[0]


def _finished(code: Code, product: Multiplication, held: _Held, value: Tensor, addend: Tensor | None) -> Tensor:
    """Return a result of all sums."""
    if product.alpha != 1:
        value = code.binary("mul", value, product.alpha, DType.FLOAT, **held.rounding)
    if addend is not None and product.addend is not None:
        value = code.binary("add", value, addend, DType.FLOAT, alpha=product.addend.factor, **held.rounding)
    return value
