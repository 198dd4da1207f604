"""Tile kernels: the code of a vertex as calls of kernels on the memory of its tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from torchipu._kernels.table.kernel import AnyKernel, I, Kernel, S
from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu._kernels.table.tile import TILE_NARROW, TILE_ROUND, TILE_WIDEN, TileRoundInts, TileWidenInts
from torchipu.device.tiles.layout import is_wide
from torchipu.errors import UnsupportedOpError
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import can_join
from torchipu.optable.emission import emit_cast, emit_chain
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, contiguous_strides
from torchipu.optable.planner import ChainFold, Joining, Mark
from torchipu.optable.random_streams import RANDOM_STREAM, WORDS, draws, rounding_stream
from torchipu.optable.samples import Samples
from torchipu.optable.spec import spec_of

SCRATCH_ALIGNMENT = 64
VertexCall = tuple[AnyKernel, int, Sequence[Any], Sequence[Any], int, int]
"""A kernel, its number of arguments, its integers and real numbers, its items and the bytes of scratch it needs."""
ON_TILE = {DType.LONG: DType.INT}
"""Element types that are another one in tile memory: there are no integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Where an argument of a kernel lies.

    Attributes:
        field: Number of the field of the vertex, reads before writes. Those behind them are beside the tile: scratch,
            the words of the streams of random bits, and for each of ``rounded`` its runs and how many they are.
        offset: In bytes from the beginning of the field.
    """

    field: int
    offset: int


class Numbering(Enum):
    """By what the bits of a stream are numbered for a vertex."""

    RESULT = auto()
    """By the elements of the whole result, which the kernel is told."""
    RANGE = auto()
    """By the elements of the whole result, of which the vertex has those from one on."""
    VERTEX = auto()
    """By what the vertex computes: it has bits of its own."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of random bits that a vertex takes from.

    Attributes:
        number: Of the stream.
        numbering: Of its bits.
    """

    number: int
    numbering: Numbering


@dataclass(slots=True)
class TileKernel:
    """The kernel calls that a vertex runs.

    Attributes:
        calls: For ``run_vertices``.
        arguments: Of all calls, in order.
        scratch_bytes: Of registers and the stack, beside tile memory.
        constants: What is in the scratch before: ``(offset, values, element type)``.
        streams: Of random bits.
        rounded: Numbers of the outputs that are rounded by the numbers of their elements.
    """

    calls: list[VertexCall] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    scratch_bytes: int = 0
    constants: list[tuple[int, Sequence[float] | Sequence[int], DType]] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    rounded: list[int] = field(default_factory=list)


def tile_kernel(code: Graph, rounded: Mapping[int, int] | None = None) -> TileKernel:
    """Return the kernel calls of the code of a vertex.

    Args:
        code: Its inputs lie in the fields that the vertex reads, its outputs in those that it writes.
        rounded: Streams by which halves are rounded stochastically, by number of the output.

    Raises:
        UnsupportedOpError: An op asks for what a vertex does not have.
    """
    if rounded:
        behind = _rounded_behind(code)
        rounded = {number: stream for number, stream in rounded.items() if code.outputs[number] in behind}
    rounded = rounded or {}
    plan = _emitted(_as_floats(code, rounded), rounded)
    plan.store_outputs()
    return plan.kernel


def _emitted(code: Graph, rounded: Mapping[int, int]) -> _VertexPlanner:
    plan = _VertexPlanner(code, rounded)
    for op in code.ops:
        plan.emit(op)
    return plan


def _rounded_behind(code: Graph) -> set[Tensor]:
    """Return the outputs that are floats before they are halves, and views of such.

    An operand is not, nor what is only moved, such as rows of an embedding, nor the last of several half partials.
    """
    computed, behind = _emitted(code, {}).computed, set()
    for output in code.outputs:
        tensor, maker = output, _maker(code, output)
        while maker is not None and tensor not in computed and (spec := spec_of(maker)) is not None and spec.is_view:
            tensor = maker.inputs[0]
            maker = _maker(code, tensor)
        if maker is not None and tensor in computed and maker.attrs.get("partials") != "half":
            behind.add(output)
    return behind


def _maker(code: Graph, tensor: Tensor) -> Op | None:
    return next((op for op in code.ops if tensor in op.outputs), None)


def _as_floats(code: Graph, rounded: Mapping[int, int]) -> Graph:
    """Return the code with floats for outputs that are rounded behind it, and for what they are views of.

    What is drawn depends on the type of the result, and is a float before it is that.
    """
    floats: dict[Tensor, Tensor] = {}
    for number in rounded:
        tensor: Tensor | None = code.outputs[number]
        while tensor is not None and (maker := _maker(code, tensor)) is not None and not draws(maker):
            floats[tensor] = replace(tensor, dtype=DType.FLOAT)
            spec = spec_of(maker)
            tensor = maker.inputs[0] if spec is not None and spec.is_view else None
    if not floats:
        return code

    def made(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(floats.get(tensor, tensor) for tensor in tensors)

    def attrs_of(op: Op) -> dict[str, object]:
        is_typed = op.attrs.get("dtype") is DType.HALF and any(tensor in floats for tensor in op.outputs)
        return {**op.attrs, "dtype": DType.FLOAT} if is_typed else dict(op.attrs)

    ops = tuple(
        replace(op, inputs=made(op.inputs), outputs=made(op.outputs), attrs=attrs_of(op)) for op in code.ops
    )
    return replace(code, outputs=made(code.outputs), ops=ops)


class _VertexPlanner:
    """What the emitters of records may ask, of a vertex: fields on a tile, and scratch; see ``HostPlanner``.

    Args:
        code: Of the vertex.
        rounded: Streams by which outputs, floats here, are rounded to halves, by their numbers.

    Attributes:
        computed: Halves that are floats while they are computed.
    """

    is_hoisting = False
    runs = 1
    multiplies_bfloats = False

    def __init__(self, code: Graph, rounded: Mapping[int, int]) -> None:
        self.code = code
        self.kernel = TileKernel(rounded=list(rounded))
        self._rounded = {code.outputs[number]: stream for number, stream in rounded.items()}
        self._scratch = len(code.inputs) + len(code.outputs)
        self._values: dict[Tensor, HostTensor] = {}
        self._outputs: dict[Tensor, HostTensor] = {}
        self._wide: set[HostTensor] = set()
        self.computed: set[Tensor] = set()
        self._due: list[tuple[HostTensor, HostTensor]] = []
        self._offsets: list[Argument] = []
        for number, tensor in enumerate(code.inputs):
            self._values[tensor] = self._given(tensor, number)
        for number, tensor in enumerate(code.outputs, len(code.inputs)):
            if tensor in self._rounded:
                continue
            dtype = DType.FLOAT if is_wide(tensor) else ON_TILE.get(tensor.dtype, tensor.dtype)
            self._outputs[tensor] = self._hold(Argument(number, 0), tensor.shape, dtype)

    def emit(self, op: Op) -> None:
        """Append the kernel calls of an op."""
        spec = spec_of(op)
        if spec is None or (spec.emit is None and spec.instruction is None):
            raise UnsupportedOpError(f"{op.target} has no tile kernel", op=op.target, source=op.source)
        if can_join(op):
            emit_chain((op,), self)
        else:
            assert spec.emit is not None
            spec.emit(op, self)
        for held, computed in self._due:
            if computed in self._wide:
                self.step(TILE_NARROW, [held], [computed], ints=TileWidenInts(held.num_elements))
            else:
                emit_cast(self, held, computed)
        self._due.clear()

    def store_outputs(self) -> None:
        """Move outputs that lie elsewhere, such as views of fields, to theirs, and round those that are to be."""
        for tensor in self.code.outputs:
            if tensor in self._rounded:
                self._round(tensor)
                continue
            held, wanted = self._values[tensor], self._outputs[tensor]
            if held != wanted and held not in self._wide and wanted.num_elements:
                emit_cast(self, wanted, held)

    # ------------------------------------------------------------------ what records may ask (HostPlanner)
    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a value lies, in a type and row-major where asked for."""
        held = self._values[tensor]
        wanted = dtype or tensor.dtype
        if held.dtype is wanted and (held.is_contiguous or not contiguous):
            return held
        fresh = self.scratch(held.shape, wanted)
        if held.num_elements:
            emit_cast(self, fresh, held)
        return fresh

    def stays_floats(self, held: HostTensor) -> bool:
        """Return whether a field of halves is not computed there."""
        return all(computed is not held for _, computed in self._due)

    def packs_once(self, held: HostTensor) -> bool:
        """Return False: a vertex packs what it needs each time."""
        return False

    def only_where(self, flag: Any) -> AbstractContextManager[None]:
        """Emit what is emitted meanwhile: sizes are known on a tile."""
        assert flag is True
        return nullcontext()

    def foldable(self, tensor: Tensor) -> HostTensor | None:
        """Return None: ops come one by one."""
        return None

    def fold_chain(self, tensor: Tensor, fold: ChainFold) -> None:
        """Refuse: nothing is foldable."""
        raise NotImplementedError(f"{tensor} is reduced by itself on a tile")

    def output(
        self, tensor: Tensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return storage for a result: its field, where it has one of the type; ops come one by one."""
        wanted = dtype or tensor.dtype
        if wanted is not tensor.dtype:
            self.computed.add(tensor)
        if tensor in self._rounded:
            self._values[tensor] = self.scratch(tensor.shape, wanted)
            return self._values[tensor]
        field_of = self._outputs.get(tensor)
        held = field_of if field_of is not None else self.scratch(tensor.shape, tensor.dtype)
        if held.dtype is wanted:
            self._values[tensor] = held
            return held
        computed = self.scratch(tensor.shape, wanted)
        if is_wide(tensor):
            self._wide.add(computed)
            self._values[tensor] = computed
        else:
            self._values[tensor] = held
        self._due.append((held, computed))
        return computed

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists."""
        self._values[tensor] = view

    def value_as_held(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return where a value lies row-major."""
        return self.value(tensor, dtype)

    def expected_order(self, tensor: Tensor) -> tuple[int, ...] | None:
        """Return None: all lies row-major."""
        return None

    def expected_output(self, tensor: Tensor) -> HostTensor:
        """Return row-major storage for a result."""
        return self.output(tensor)

    def placed_output(self, tensor: Tensor) -> HostTensor:
        """Return row-major storage for a result: on a tile nothing is part of a whole."""
        return self.output(tensor)

    def product_output(self, tensor: Tensor, like: HostTensor | None = None) -> HostTensor:
        """Return row-major storage for a product: vertices multiply floats."""
        return self.output(tensor)

    def output_as_held(
        self, tensor: Tensor, held: HostTensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return row-major storage for a result."""
        return self.output(tensor, dtype, rounded_as=rounded_as)

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a result that begins as the state that it takes the place of."""
        held = self._outputs.get(result)
        if held is None:
            held = self.scratch(state.shape, result.dtype)
        if held.num_elements:
            emit_cast(self, held, self._values[state])
        self._values[result] = held
        if state.dtype is not DType.LONG or is_wide(state):
            return held
        changed = self.scratch(state.shape, state.dtype)  # words of 64 bits, which the kernel overwrites
        if held.num_elements:
            emit_cast(self, changed, held)
        self._due.append((held, changed))
        return changed

    def all_reduced(self, total: Tensor) -> HostTensor:
        """Return where a value lies: a vertex knows of one replica."""
        return self._values[total]

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return fresh storage beside tile memory."""
        begin = self.kernel.scratch_bytes
        held = self._hold(Argument(self._scratch, begin), tuple(shape), dtype)
        taken = max(1, held.num_elements) * dtype.host_bytes
        self.kernel.scratch_bytes = begin + -(-taken // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        return held

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        held = self.scratch((len(values),), dtype)
        self.kernel.constants.append((self._offsets[held.buffer].offset, values, dtype))
        return held

    def random_state(self, op: Op) -> HostTensor:
        """Return LONG[4], the words from which an op draws: they tell which element of the whole result comes first."""
        return self._words(Stream(op.integer(RANDOM_STREAM), Numbering.RANGE))

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result is rounded: what is no result of the whole op by bits of the vertex's own."""
        if result.dtype is not DType.HALF:
            return TO_NEAREST
        self.computed.add(result)
        stream = rounding_stream(op, result)
        words = None if stream is None else self._words(Stream(stream, Numbering.VERTEX))
        return Rounding(words, _overflow_of(op))

    def stored_type(self, tensor: Tensor) -> DType:
        """Return as what a value lies: halves as they are."""
        return DType.HALF if tensor.dtype is DType.HALF else DType.FLOAT

    def may_have_floats(self, tensor: Tensor) -> bool:
        return False

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        return tensor in self.code.outputs or any(tensor in op.inputs for op in self.code.ops)

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything reads this result: each op is a chain by itself."""
        return self.wanted(tensor)

    def step(
        self, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: I | tuple[()] = (), scalars: S | tuple[()] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, together: bool = False, adds_up: bool = False,
        joining: Joining | None = None, writes: Sequence[Blocks | None] = (), samples: Samples | None = None,
        overwrites: Sequence[frozenset[int]] = (), rounds: int = 1, op: Op | None = None,
    ) -> None:
        """Append a kernel call."""
        if items <= 0:
            return
        held = [*outputs, *inputs]
        self.kernel.calls.append((kernel, len(held), ints, scalars, items, scratch_bytes))
        for one in held:
            base = self._offsets[one.buffer]
            element_bytes = one.dtype.host_bytes
            self.kernel.arguments.append(Argument(base.field, base.offset + one.offset * element_bytes))

    def body(self, body: Graph, operands: Sequence[HostTensor]) -> list[HostTensor]:
        """Refuse: control flow is the program's, not a vertex's."""
        raise UnsupportedOpError("a vertex runs no graphs", op="control flow")

    def place(self, mark: Mark) -> None:
        """Refuse, as ``body``."""
        raise UnsupportedOpError("a vertex runs no loops", op="control flow")

    def go(self, mark: Mark, unless: HostTensor | None = None) -> None:
        """Refuse, as ``body``."""
        raise UnsupportedOpError("a vertex runs no loops", op="control flow")

    def loop(self, counter: HostTensor) -> AbstractContextManager[None]:
        """Refuse, as ``body``."""
        raise UnsupportedOpError("a vertex runs no loops", op="control flow")

    # ------------------------------------------------------------------ random bits
    def _words(self, stream: Stream) -> HostTensor:
        """Return the words of a stream."""
        if stream not in self.kernel.streams:
            self.kernel.streams.append(stream)
        row = WORDS * DType.LONG.host_bytes * self.kernel.streams.index(stream)
        return self._hold(Argument(self._scratch + 1, row), (WORDS,), DType.LONG)

    def _round(self, tensor: Tensor) -> None:
        """Round an output to halves by the numbers of its elements within the whole result."""
        number, beside = self.code.outputs.index(tensor), self._scratch + 2
        place = beside + 2 * self.kernel.rounded.index(number)
        maker = _maker(self.code, tensor)
        assert maker is not None
        words = self._words(Stream(self._rounded[tensor], Numbering.RESULT))
        halves = self._hold(Argument(len(self.code.inputs) + number, 0), tensor.shape, DType.HALF)
        runs, count = (self._hold(Argument(place + k, 0), (1,), DType.LONG) for k in range(2))
        if tensor.num_elements:
            floats = self.value(tensor, DType.FLOAT)
            self.step(TILE_ROUND, [halves], [floats, words, runs, count], ints=TileRoundInts(_overflow_of(maker)))

    # ------------------------------------------------------------------ storage
    def _given(self, tensor: Tensor, number: int) -> HostTensor:
        """Return where an input lies; doubles, floats on the tile, are made such first."""
        if not is_wide(tensor):
            return self._hold(Argument(number, 0), tensor.shape, ON_TILE.get(tensor.dtype, tensor.dtype))
        given = self._hold(Argument(number, 0), tensor.shape, DType.FLOAT)
        wide = self.scratch(tensor.shape, DType.LONG)
        self.step(TILE_WIDEN, [wide], [given], ints=TileWidenInts(tensor.num_elements))
        return wide

    def _hold(self, at: Argument, shape: tuple[int, ...], dtype: DType) -> HostTensor:
        self._offsets.append(at)
        return HostTensor(len(self._offsets) - 1, 0, tuple(shape), contiguous_strides(shape), dtype)



def _overflow_of(op: Op) -> HalfOverflow:
    return HalfOverflow[op.text("half_overflow", "infinity").upper()]
