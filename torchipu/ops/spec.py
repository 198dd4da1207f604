"""The record of an operator, the table of all records, and what a record may ask of the host planner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType

if TYPE_CHECKING:
    from torchipu._kernels.abi import Kernel
    from torchipu.target import Target

FLOATING = (DType.HALF, DType.FLOAT)
INTEGER = (DType.INT, DType.LONG, DType.SHORT, DType.CHAR, DType.UNSIGNED_CHAR)
ANY = (*FLOATING, *INTEGER, DType.BOOL)


# --------------------------------------------------------------------------- device side: what it costs
@dataclass(frozen=True, slots=True)
class Codelet:
    """Device code of a vertex, known by its cost.

    Attributes:
        name: Poplibs-like name, unique.
        cycles: ``(target, work) -> tile cycles`` of one vertex with six workers; ``work`` holds the sizes on
            the busiest tile by name.
        code_bytes: Bytes of code on each tile that runs it; counted once per tile.
        source: Where the formula comes from, or ``estimate``.
    """

    name: str
    cycles: Callable[[Target, Mapping[str, int]], int]
    code_bytes: int
    source: str = "estimate"


@dataclass(frozen=True, slots=True)
class Vertices:
    """One compute set that an op's lowering asks for.

    Attributes:
        codelet: What runs.
        elements: Size of the iteration space that is spread over the tiles.
        grain: Elements that stay together on a tile.
        work: ``elements on the busiest tile -> sizes`` for the cycle formula.
        gathered_bytes: Bytes that the busiest tile must receive first because operands live elsewhere.
        fragments: Contiguous pieces among them.
        temporary_bytes: Bytes that a tile needs while the set runs.
        max_tiles: Tiles that the plan uses at most; None for all of them.
        repeats: How often the set runs, each time with other operands in the same temporary memory.
    """

    codelet: Codelet
    elements: int
    work: Callable[[int], Mapping[str, int]]
    grain: int = 1
    gathered_bytes: int = 0
    fragments: int = 1
    temporary_bytes: int = 0
    max_tiles: int | None = None
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product on the device.

    Attributes:
        groups: Independent products of the same sizes.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
    """

    groups: int
    positions: int
    inputs: int
    outputs: int


Lowering = Callable[[Op, "Target"], tuple[Vertices, ...]]


# --------------------------------------------------------------------------- host side: how values come about
@dataclass(frozen=True, slots=True)
class HostTensor:
    """A strided view of a host buffer.

    Attributes:
        buffer: Number of the buffer in the plan.
        offset: Elements from the beginning of the buffer.
        shape: Sizes.
        strides: Elements between neighbours along each dimension; 0 where expanded.
        dtype: Element type in memory.
    """

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType

    @property
    def num_elements(self) -> int:
        """Product of the sizes."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie row-major without gaps."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True, slots=True)
class Rounding:
    """How a result becomes half.

    Attributes:
        random: LONG[4] of a random op (see ``HostPlanner.random_state``) to round stochastically; None to round to
            nearest.
        overflow: What becomes of values beyond 65504: 0 infinity, 1 NaN, 2 the largest half.
    """

    random: HostTensor | None = None
    overflow: int = 0


TO_NEAREST = Rounding()


@dataclass(frozen=True, slots=True)
class Joined:
    """One kernel call for neighbouring runs of a step that computes what each of them does, bit for bit.

    Attributes:
        strides: For each argument the bytes from that of a run to that of the next; 0 for one that all of them share.
        ints: Integer parameters of the call.
        items: Its size.
        grain: Items of one chunk.
    """

    strides: tuple[int, ...]
    ints: tuple[int, ...]
    items: int
    grain: int


Joining = Callable[[int], Joined]
"""Makes the call for so many runs."""
CHUNKS_OF_JOINED = 8  # of a call of many items: enough for some threads, few enough that beginning one costs little


def more_items(strides: tuple[int, ...], ints: tuple[int, ...], items: int, grain: int, runs: int) -> Joined:
    """Return the call for several runs of a kernel whose items alone tell where it reads and writes.

    Args:
        strides: See ``Joined``.
        ints: Of one run.
        items: Of one run.
        grain: Of one run; what an item computes must not depend on it.
        runs: How many.
    """
    return Joined(strides, ints, runs * items, max(grain, -(-runs * items // CHUNKS_OF_JOINED)))


@dataclass(frozen=True, slots=True)
class Along:
    """One dimension of the space that the items of a step share out.

    Attributes:
        size: Places.
        block: Places of an item; the last block may be shorter.
        inner: Places after which ``outer`` applies.
        step: Elements of the result from one place to the next.
        middle: How often ``outer`` applies before ``outmost`` does.
        outer: Elements from one run of ``inner`` places to the next.
        outmost: Elements from one run of ``inner * middle`` places to the next.
    """

    size: int
    block: int
    inner: int
    step: int
    middle: int = 1
    outer: int = 0
    outmost: int = 0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which elements of a result the items of a step write, counted from its first: blocks of a space, row-major.

    Where a result is rounded to half, that happens in the step itself, block by block; a step that does not say what
    its items write is followed by a copy that rounds.

    Attributes:
        dims: The space.
        first: Element that its first place is.
    """

    dims: tuple[Along, ...]
    first: int = 0

    @staticmethod
    def of(shape: Sequence[int], block: Sequence[int]) -> Blocks:
        """Return the blocks of a row-major result: ``block`` sizes along each dimension of ``shape``."""
        steps = contiguous_strides(shape)
        return Blocks(tuple(
            Along(size, max(1, part), max(1, size), step)
            for size, part, step in zip(shape, block, steps, strict=True)
        ))

    @staticmethod
    def rows(items: int, held: HostTensor) -> Blocks:
        """Return blocks for items that write equal shares of a result, one after another."""
        return Blocks.runs(held.num_elements // max(1, items), held)

    @staticmethod
    def runs(length: int, held: HostTensor) -> Blocks:
        """Return blocks for items that write ``length`` elements each, one after another; the last may write fewer."""
        return Blocks.of((held.num_elements,), (length,))

    @property
    def num_elements(self) -> int:
        """Elements that all items write."""
        count = 1
        for dim in self.dims:
            count *= dim.size
        return count

    @property
    def num_blocks(self) -> int:
        """Items."""
        count = 1
        for dim in self.dims:
            count *= -(-dim.size // dim.block)
        return count

    @property
    def item_floats(self) -> int:
        """Elements of an item where every item writes as many, side by side, in the order of the items; else 0."""
        expected, item, is_even = 1, 0, True
        for dim in reversed(self.dims):
            if dim.inner < dim.size or (dim.size > 1 and dim.step != expected) or self.first:
                return 0
            block = min(dim.block, dim.size)
            if item and (block > 1 or (dim.size > 1 and not is_even)):
                return 0
            if not item and block < dim.size:
                item, is_even = expected * block, dim.size % block == 0
            expected *= dim.size
        return item or expected


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@dataclass(slots=True, eq=False)
class Mark:
    """A place among the steps of a plan that others go on with."""


class HostPlanner(Protocol):
    """What the emitter of a record may ask of the planner; implemented in ``runtime.host_plan``.

    Attributes:
        is_hoisting: Whether steps that depend on weights alone run less often than the others.
        runs: How often the others run before an update, for micro-batches and replicas together.
    """

    is_hoisting: bool
    runs: int

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a tensor's value lies, after a cast or a copy to row-major order where asked for.

        A cast alone keeps the order in which the elements lie.
        """
        ...

    def output(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return row-major storage for a result; with another ``dtype``, the planner casts after the op."""
        ...

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists; nothing is copied."""
        ...

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a state, which holds ``result`` from the op's step on (``reads_outputs`` there)."""
        ...

    def all_reduced(self, total: Tensor) -> HostTensor:
        """Return storage that holds, in the update, the sum of what each replica has accumulated."""
        ...

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return row-major storage that lives while the op's steps run (or longer, if its writer is hoisted)."""
        ...

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        ...

    def random_state(self, op: Op) -> HostTensor:
        """Return LONG[4]: seed, replica, number of the op within the program, micro-batch counter."""
        ...

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result of an op is rounded."""
        ...

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        ...

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything outside the chain being emitted reads this result."""
        ...

    def step(
        self, kernel: Kernel, outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: Sequence[int] = (), scalars: Sequence[float] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, together: bool = False, adds_up: bool = False,
        joining: Joining | None = None,
        writes: Sequence[Blocks | None] = (),
    ) -> None:
        """Append a kernel call; its ``args`` are the outputs, then the inputs.

        Args:
            kernel: The host kernel.
            outputs: Storage written.
            inputs: Storage read.
            ints: Integer parameters, by the kernel's documentation.
            scalars: Floating parameters.
            items: Size of the iteration space shared among threads.
            grain: Items of one chunk; chosen from shapes alone, so that results do not depend on threads.
            scratch_bytes: Private bytes each thread needs.
            reads_outputs: Whether the kernel also reads what it overwrites (accumulation).
            together: Whether the call is made once for all replicas, after each of them has run what comes before: the
                kernel is given the number of replicas and the bytes between their memories behind ``ints``.
            adds_up: Whether the kernel adds onto its outputs, an item of it onto a part that depends on the item alone
                and not on values: micro-batches may then add one after another item by item.
            joining: Makes one call for several micro-batches or replicas whose arguments lie one behind the other.
            writes: What of each output the items write, as far as it is known.
        """
        ...

    def body(self, body: Graph, operands: Sequence[HostTensor]) -> list[HostTensor]:
        """Append the steps of a graph that an op runs and return where its results lie.

        Args:
            body: One of ``Op.bodies``.
            operands: Storage of its inputs.
        """
        ...

    def place(self, mark: Mark) -> None:
        """Put a mark before the next step."""
        ...

    def go(self, mark: Mark, unless: HostTensor | None = None) -> None:
        """Append a jump to a mark, taken always or unless a boolean is true."""
        ...

    def loop(self, counter: HostTensor) -> AbstractContextManager[None]:
        """Say that the steps appended within run again and again: what they keep lasts until the last has ended.

        Args:
            counter: LONG[1], trips made so far; random ops draw anew with each.
        """
        ...


Emitter = Callable[[Op, HostPlanner], None]


# --------------------------------------------------------------------------- the record and the table
@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on an op's arguments.

    Attributes:
        holds: Tells whether an op satisfies it.
        message: What is wrong when it does not.
        remedy: What to do.
    """

    holds: Callable[[Op], bool]
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class OpSpec:
    """All that torchipu knows of an operator.

    Attributes:
        target: ATen overload (``aten.relu.default``), or ``ipu.*`` for ops of ours.
        kind: Name in the IR.
        lower: Compute sets that the op becomes; empty for ops that move nothing.
        emit: Host steps that give its value. None when ``instruction`` is given, and for what runs as its torch
            operator.
        instruction: For elementwise ops: how the op enters a fused chain (see ``ops.chain``).
        dtypes: Element types of floating or integer operands that the record serves; others go generic.
        constraints: Conditions checked at import.
        is_view: The result is a view of the first operand; costs nothing until a consumer gathers it.
        is_random: Draws random bits: never removed or merged; recomputed with the same bits.
        on_host: The device waits while the host does this, with operands that it is sent.
        has_effect: It is there for more than its results: never removed, merged or recomputed.
        is_in_place: The first result overwrites the first operand, which nothing reads afterwards.
        shape_only: Operands of which only the shape matters, so that their values need not exist.
        products: Its products on the matrix unit, in the order in which its emitter counts them.
        supports: Tells whether the host kernels serve this op as it stands; otherwise it goes generic.
    """

    target: str
    kind: str
    lower: Lowering
    emit: Emitter | None = None
    instruction: object = None
    dtypes: tuple[DType, ...] = ANY
    constraints: tuple[Constraint, ...] = ()
    is_view: bool = False
    is_random: bool = False
    on_host: bool = False
    has_effect: bool = False
    is_in_place: bool = False
    shape_only: tuple[str, ...] = ()
    products: Callable[[Op], tuple[Product, ...]] | None = None
    supports: Callable[[Op], bool] = field(default=lambda op: True)


TABLE: dict[str, OpSpec] = {}


def register(*specs: OpSpec) -> None:
    """Enter records into the table.

    Raises:
        ValueError: A target is registered twice.
    """
    for spec in specs:
        if spec.target in TABLE:
            raise ValueError(f"{spec.target} is in the op table already")
        TABLE[spec.target] = spec


@dataclass(frozen=True, slots=True)
class Fusion:
    """Ops that the host computes in one go when nothing else reads what each hands to the next.

    Attributes:
        targets: The ops in order; the first result of each is handed to the next.
        applies: Tells whether the kernel serves these ops.
        emit: Host steps that give the results of all, less the values handed on.
    """

    targets: tuple[str, ...]
    applies: Callable[[Sequence[Op]], bool]
    emit: Callable[[Sequence[Op], HostPlanner], None]


FUSIONS: dict[tuple[str, ...], Fusion] = {}


def register_fusion(*fusions: Fusion) -> None:
    """Enter sequences that the host planner may join; where several apply it takes the longest."""
    for fusion in fusions:
        FUSIONS[fusion.targets] = fusion


def lookup(target: str) -> OpSpec | None:
    """Return the record of an ATen overload, or None."""
    return TABLE.get(target)


def spec_of(op: Op) -> OpSpec | None:
    """Return the record that serves this op, or None when it runs through the generic codelet."""
    return None if op.kind == "generic" else TABLE.get(op.target)
