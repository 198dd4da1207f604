"""Where what an op reads lies, and where what it makes is to lie: what op records ask of the planner."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from torchipu.host.concatenation import Concatenations
from torchipu.host.fusion import Fused
from torchipu.host.kept_floats import KeptFloats
from torchipu.host.layouts import Layouts
from torchipu.host.memory import Memory
from torchipu.host.observation import Observation
from torchipu.host.orders import Orders
from torchipu.host.random_streams import RandomStreams
from torchipu.host.uses import Uses
from torchipu.host.values import Values
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocked import BlockedPlanner, Sizes
from torchipu.optable.chain import can_join, is_widening
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.marks import BFLOATS
from torchipu.optable.spec import spec_of

FACTORS = {"mm": "", "bmm": "", "addmm": "self", "baddbmm": "self"}
"""Products by their kind, and the operand of each that is no factor."""


class Operands(BlockedPlanner):
    """Where values lie while a graph's steps are emitted; whoever emits them sets what is being emitted.

    Attributes:
        memory: Of all storage.
        uses: Who reads what.
        values: Where each value lies row-major, or in another order of its dimensions.
        floats: Of halves, which their makers have left or can leave.
        streams: Of random words.
        orders: In which values may lie.
        layouts: Values that lie with their channels in blocks.
        fused: Ops that are emitted together, by the last of them.
        absorbed: The others of these, and of what is computed in blocks.
        observation: What of results is looked at as they are made; None for nothing.
        multiplies_bfloats: Whether products of what torch has as bfloat16 are products of bfloats, not of floats.
    """

    memory: Memory
    uses: Uses
    values: Values
    floats: KeptFloats
    streams: RandomStreams
    orders: Orders
    layouts: Layouts
    fused: Fused
    absorbed: set[Op]
    observation: Observation | None
    multiplies_bfloats: bool

    def __init__(self) -> None:
        self._joining: dict[Op, bool] = {}  # whether ops are part of chains, as far as that was asked
        self._chain: frozenset[Op] = frozenset()  # that is emitted
        self._is_in_blocks = False  # that chain
        self._is_moving = False  # what is emitted, bfloats
        self._order: tuple[int, ...] | None = None  # of dimensions, in which it goes through elements
        self._casts_due: list[tuple[Tensor, Tensor, HostTensor]] = []  # and how they are rounded
        self._depth = 0  # of loops and bodies
        self._bfloats: Collection[Tensor] = ()  # outputs that the caller takes as such
        self._concatenations: Concatenations | None = None

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a value lies, cast or copied to row-major order where asked for.

        A cast alone keeps the order in which the elements lie.
        """
        if self._is_in_blocks and tensor.num_elements > 1:
            return self.blocked(tensor)
        self._make_plain(tensor)
        if dtype is None and not self._takes_bfloats and self.values.by_tensor[tensor].dtype is DType.BFLOAT:
            dtype = DType.FLOAT
        return self.values.given(self, tensor, dtype, contiguous=contiguous)

    def may_have_floats(self, tensor: Tensor) -> bool:
        """Whether a half's floats are there, or its maker can leave them."""
        held = self.values.by_tensor.get(tensor)
        return held is not None and self.floats.may_have(held)

    def stored_type(self, tensor: Tensor) -> DType:
        """Return as what a value lies: halves or bfloats where there are no floats, and none may be left."""
        held = self.values.by_tensor.get(tensor)
        if held is not None and held.dtype is DType.BFLOAT:
            return DType.BFLOAT
        has_halves = tensor.dtype is DType.HALF and not self.may_have_floats(tensor)
        return DType.HALF if has_halves else DType.FLOAT

    def output(
        self, tensor: Tensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return row-major storage for a result, which becomes half as another one would where that is given."""
        if self._is_in_blocks:
            return self.blocked_output(tensor)
        if self._order is not None:
            return self._output_in_order(tensor, self._order).permuted(self._order)
        stored = self._in_concatenation(tensor) or self.scratch(tensor.shape, self._stored_type(tensor))
        self.values.by_tensor[tensor] = stored
        if dtype is None or dtype is tensor.dtype:
            return stored
        computed = self.scratch(tensor.shape, dtype)
        self._casts_due.append((tensor, rounded_as or tensor, computed))
        return computed

    def product_output(self, tensor: Tensor, like: HostTensor | None = None) -> HostTensor:
        """Return storage for a product of bfloats: of bfloats too where nothing reads floats."""
        order = None if like is None else self.orders.like(like, tensor)
        dtype = DType.BFLOAT if self.observation is None and self._is_read_as_bfloats(tensor) else tensor.dtype
        lying = self.scratch(tensor.shape if order is None else [tensor.shape[dim] for dim in order], dtype)
        stored = lying if order is None else lying.permuted([order.index(dim) for dim in range(len(order))])
        self.values.by_tensor[tensor] = stored
        return stored

    def _is_read_as_bfloats(self, tensor: Tensor) -> bool:
        """Whether a value leaves the graph as bfloats, if it does, and is read by what takes bfloats as they lie."""
        readers = self.uses.readers.get(tensor, ())
        if tensor in self.uses.kept and tensor not in self._bfloats:
            return False
        return all(self._reads_bfloats(op, tensor) for op in readers)

    def _reads_bfloats(self, op: Op, tensor: Tensor) -> bool:
        """Whether an op takes an operand as bfloats: a product, a chain, or what only moves it for such ops."""
        spec = spec_of(op)
        if op.attrs.get(BFLOATS) and op.kind in FACTORS:
            return self.multiplies_bfloats and op.operand(FACTORS[op.kind]) is not tensor
        if spec is not None and spec.moves and len(op.inputs) == 1:
            return self._is_read_as_bfloats(op.outputs[0])
        return self._joins(op)

    @property
    def _takes_bfloats(self) -> bool:
        """Whether what is emitted reads bfloats as they lie: a chain converts them as they pass, or they are moved."""
        return self._is_moving or bool(self._chain)

    def _moves_bfloats(self, op: Op) -> bool:
        """Whether an op only moves elements, and all of them lie as bfloats."""
        spec, floats = spec_of(op), [tensor for tensor in op.inputs if tensor.dtype is DType.FLOAT]
        held = [self.values.by_tensor.get(tensor) for tensor in floats]
        lie_so = [each is not None and each.dtype is DType.BFLOAT for each in held]
        return spec is not None and spec.moves and bool(floats) and all(lie_so) and self.observation is None

    def _stored_type(self, tensor: Tensor) -> DType:
        """Return the type in which a result is stored: a chain converts what the caller alone reads."""
        if self._is_moving and tensor.dtype is DType.FLOAT:
            return DType.BFLOAT
        is_last = tensor in self._bfloats and self._chain.issuperset(self.uses.readers.get(tensor, ()))
        return DType.BFLOAT if is_last and self._chain and self.observation is None else tensor.dtype

    def _in_concatenation(self, tensor: Tensor) -> HostTensor | None:
        """Return where a chain's result lies beside others, or the whole where such results lie already."""
        if self._concatenations is None or self._depth:
            return None
        if self._chain:
            return self._concatenations.place_of(tensor, lambda whole: self.scratch(whole.shape, whole.dtype))
        return self._concatenations.memory_of(tensor)

    def placed_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result by any strides, where it is part of a whole, else row-major storage."""
        if self._concatenations is None or self._depth or self._is_moving:
            return self.output(tensor)
        place = self._concatenations.place_of(tensor, lambda whole: self.scratch(whole.shape, whole.dtype))
        if place is None:
            return self.output(tensor)
        self.values.by_tensor[tensor] = place
        return place

    def value_as_held(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return where a value lies: row-major, or in another order of its dimensions where orders are kept."""
        if self.orders.are_kept and not self._is_in_blocks:
            held = self.value(tensor, dtype, contiguous=False)
            if held.is_dense:
                return held
        return self.value(tensor, dtype)

    def output_as_held(
        self, tensor: Tensor, held: HostTensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return storage for a result, in the order in which an operand lies where it may lie so."""
        is_cast, rounded = dtype not in (None, tensor.dtype), rounded_as or tensor
        is_plain = (self._is_in_blocks or self._in_concatenation(tensor) is not None
                    or (is_cast and not self._rounds_anywhere(rounded)))
        order = None if is_plain else self.orders.like(held, tensor)
        if order is None:
            return self.output(tensor, dtype, rounded_as=rounded_as)
        stored = self._output_in_order(tensor, order)
        if not is_cast:
            return stored
        assert dtype is not None
        lying = self.scratch([tensor.shape[dim] for dim in order], dtype)
        computed = lying.permuted([order.index(dim) for dim in range(len(order))])
        self._casts_due.append((tensor, rounded, computed))
        return computed

    def _rounds_anywhere(self, result: Tensor) -> bool:
        """Whether a half result is rounded without random bits, which are drawn by place."""
        return result.dtype is DType.HALF and self.streams.of_rounding(self.uses.makers[result], result).random is None

    def expected_order(self, tensor: Tensor) -> tuple[int, ...] | None:
        """Return the order of dimensions in which the caller expects a result; None where nobody does."""
        return self.orders.of_expected(tensor)

    def expected_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result, in the order in which the caller expects it; row-major where nobody does."""
        order = self.orders.of_expected(tensor)
        return self.output(tensor) if order is None else self._output_in_order(tensor, order)

    def _output_in_order(self, tensor: Tensor, order: Sequence[int]) -> HostTensor:
        """Return storage for a value that lies in an order of its dimensions."""
        stored = self.scratch([tensor.shape[dim] for dim in order], self._stored_type(tensor))
        strides = self.orders.strides_in(tensor, order)
        self.values.by_tensor[tensor] = replace(stored, shape=tensor.shape, strides=strides)
        return self.values.by_tensor[tensor]

    def _make_plain(self, tensor: Tensor) -> None:
        """Give a value that lies in blocks alone a row-major place as well, whatever order a chain goes in."""
        outside, self._order = self._order, None
        self.layouts.make_plain(tensor, self.values, self)
        self._order = outside

    def blocked(self, tensor: Tensor) -> HostTensor:
        """Return where a value of ``[N, C, H, W]`` lies in the blocked layout, brought there if need be."""
        outside = self._is_in_blocks, self._chain
        self._is_in_blocks, self._chain = False, frozenset()
        held = self.layouts.blocked(tensor, self)
        self._is_in_blocks, self._chain = outside
        return held

    def is_blocked(self, tensor: Tensor) -> bool:
        """Whether a value lies in the blocked layout already."""
        return tensor in self.layouts.held

    def has_channels_last(self, tensor: Tensor) -> bool:
        """Whether a value has its channels last, where it lies row-major."""
        return tensor in self.layouts.rows

    def blocked_output(self, tensor: Tensor) -> HostTensor:
        """Return storage in the blocked layout for a result."""
        return self.layouts.output(tensor, self)

    def blocked_view(self, tensor: Tensor, source: Tensor) -> None:
        """Say that a result lies in the blocked layout as another value does."""
        self.layouts.held[tensor] = self.blocked(source)

    def image_sizes(self, tensor: Tensor) -> Sizes:
        """Return the sizes of the images that a value holds, whether channels come second or last."""
        return self.layouts.sizes(tensor)

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists."""
        self.values.by_tensor[tensor] = view

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a state, which from now on holds ``result``."""
        held = self.values.by_tensor[state]
        self.values.by_tensor[result] = held
        return held

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return fresh row-major storage in the arena."""
        return self.memory.scratch(shape, dtype)

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        return self.memory.constant(values, dtype)

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        return self.uses.is_read(tensor)

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything outside the chain being emitted reads this result."""
        return self.uses.is_read(tensor, except_by=self._chain)

    def _joins(self, op: Op) -> bool:
        """Whether an op is elementwise, no fusion has it, and it is not a view of floats that are there."""
        if op not in self._joining:
            is_free = op not in self.fused and op not in self.absorbed and not self.layouts.takes(op)
            self._joining[op] = can_join(op) and is_free and not self._shows_floats(op)
        return self._joining[op]

    def _shows_floats(self, op: Op) -> bool:
        """Whether an op makes floats of a half whose maker has left them, or may."""
        return is_widening(op) and self.may_have_floats(op.inputs[0])
