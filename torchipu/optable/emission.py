"""Makes one kernel call of a chain of elementwise ops: slots, registers and instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torchipu._kernels.table.elementwise import (
    CHAIN,
    MAX_DIMS,
    OPERATIONS,
    SCALAR_OPERATIONS,
    ChainInstruction,
    ChainInts,
    ChainScalars,
    ChainSlot,
    SlotKind,
)
from torchipu._kernels.table.kernel import flat
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.chain import NATIVE, Chain, Node, Value, class_of
from torchipu.optable.half_moves import moved_as_bits
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, collapse, take_turns
from torchipu.optable.narrowing import WIDTHS, copy_of, narrowed
from torchipu.optable.overwriting import may_refuse, overwritten
from torchipu.optable.pair_products import PairProduct, product_of_pairs
from torchipu.optable.planner import ChainFold, HostPlanner
from torchipu.optable.random_streams import rounding_stream
from torchipu.optable.samples import Samples
from torchipu.optable.spec import spec_of

DTYPE_CODES = {
    DType.FLOAT: 0, DType.HALF: 1, DType.BOOL: 2, DType.LONG: 3, DType.INT: 4, DType.SHORT: 5, DType.CHAR: 6,
    DType.UNSIGNED_CHAR: 7, DType.BFLOAT: 9,
}
# How integers come to a register that holds them as they are: as floats, bools and 64-bit integers do.
AS_THEY_ARE = {
    DType.INT: DTYPE_CODES[DType.FLOAT], DType.SHORT: 8, DType.CHAR: DTYPE_CODES[DType.BOOL],
    DType.UNSIGNED_CHAR: DTYPE_CODES[DType.BOOL],
}
HELD = {**NATIVE, **{kind: dtype for dtype, kind in WIDTHS.items()}}
"""The type of what a register of each class holds."""
REGISTER_BYTES = {kind: dtype.host_bytes for kind, dtype in HELD.items()}
# Nanoseconds an element costs, roughly; they set the size of a thread's share and nothing else.
NS_CHEAP, NS_FUNCTION, NS_SCALAR = 0.12, 0.8, 5.0
FUNCTIONS = frozenset(
    [
        "f_pow", "f_exp", "f_expm1", "f_log", "f_log1p", "f_log2", "f_log10", "f_sin", "f_cos", "f_tanh", "f_sigmoid",
        "f_erf", "f_exp2", "f_elu", "f_gelu", "f_gelu_tanh", "f_silu", "f_mish", "f_softplus", "f_log_sigmoid",
        "f_gelu_grad", "f_gelu_tanh_grad", "f_silu_grad", "f_softplus_grad", "f_elu_grad", "f_log_sigmoid_grad",
        "f_logit", "f_logaddexp", "f_logaddexp2", "f_xlogy", "f_xlog1py", "f_entr", "f_sinc", "f_mish_grad", "f_glu",
        "f_glu_gate_grad", "f_atan2", "f_tan", "f_atan", "f_asin", "f_acos", "f_sinh", "f_cosh", "f_asinh", "f_acosh",
        "f_atanh", "f_erfc", "f_erfinv", "f_ndtri", "f_fmod", "f_remainder", "f_floor_div", "f_hypot",
        "f_lgamma", "f_digamma", "f_i0", "f_i0e", "f_i1", "f_i1e", "l_floor_div", "l_trunc_div", "l_remainder",
        "l_fmod",
    ],
)
SHARE_NS = 10_000.0


@dataclass(slots=True)
class Slot:
    """One entry of the kernel's slot table; ``offset_of`` is resolved once the block size is known."""

    kind: SlotKind
    argument: int = 0
    dtype: int = 0
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    register: int = -1


@dataclass(slots=True)
class Emission:
    """Turns the nodes of a chain into slots, registers and instructions.

    Args:
        chain: The finished chain.
        results: Values and where they are stored.
        num_outputs: Arguments before those that are read.

    Attributes:
        turns: Places of results that take turns in memory with another one, and the place of that.
        needed: For each value that is needed the last instruction that reads it.
    """

    chain: Chain
    results: list[tuple[Value, HostTensor]]
    num_outputs: int = 0
    slots: list[Slot] = field(default_factory=list)
    program: list[ChainInstruction] = field(default_factory=list)
    scalars: list[float] = field(default_factory=list)
    inputs: list[HostTensor] = field(default_factory=list)
    register_kinds: list[str] = field(default_factory=list)
    free: dict[str, list[int]] = field(default_factory=lambda: {kind: [] for kind in HELD})
    slot_by_value: dict[int, int] = field(default_factory=dict)
    cost_ns: float = NS_CHEAP
    nodes: Sequence[Node] = ()
    codes: dict[DType, int] = field(default_factory=lambda: DTYPE_CODES)
    turns: dict[int, int] = field(default_factory=dict)
    needed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = self.chain.nodes
        self.num_outputs = self.num_outputs or len(self.results)
        self.turns = turns_of(self.results)
        fewer_bits = narrowed(self.nodes, self.results) or moved_as_bits(self.nodes, self.results)
        if fewer_bits is not None:
            self.nodes, self.results = fewer_bits
            self.codes = {**DTYPE_CODES, **AS_THEY_ARE}

    def emit(self) -> None:
        """Emit the step."""
        product = self._product()
        if product is not None:
            self._emit_product(product)
            return
        last_use = self.needed = self._last_uses()
        direct = self._direct_results()
        for number in sorted(last_use):
            node = self.nodes[number]
            if self._is_stored_alone(number, last_use):
                self._emit_rounded_store(number, node, direct)
                self._release_after(number, node, last_use)
                continue
            if node.operation:
                self._emit_instruction(number, node, last_use, direct)
            if number in last_use:
                self._emit_stores(number, direct)
                if last_use[number] == number:
                    self._release(number)
        self._append_step()

    def _product(self) -> PairProduct | None:
        """Return the product of complex numbers that the chain is; None where it is anything else."""
        return product_of_pairs(self.nodes, self.results, self.turns)

    def _emit_product(self, product: PairProduct) -> None:
        """Multiply complex numbers as they lie: to take them apart first would take most of the time."""
        self.inputs += [*product.operands, *product.others]
        first, second = (
            self._walk_slot(self.num_outputs + number, held) for number, held in enumerate(product.operands)
        )
        real, imaginary = (self._walk_slot(place, self.results[place][1]) for place in product.results)
        self._add("x_multiply_pairs", real, first, second, imaginary, 0)
        self.scalars.extend(product.signs)
        self.cost_ns += 4 * NS_CHEAP
        self._append_step()

    def _is_stored_alone(self, number: int, last_use: dict[int, int]) -> bool:
        """Whether a rounded value goes to one place, as row-major halves, and nowhere else."""
        held = [held for value, held in self.results if value.number == number]
        return (
            self.nodes[number].operation == "f_round_by" and last_use[number] == number and len(held) == 1
            and held[0].dtype is DType.HALF and held[0].is_contiguous
        )

    def _emit_rounded_store(self, number: int, node: Node, direct: dict[int, int]) -> None:
        """Round a value straight into memory."""
        position = next(place for place, (value, _) in enumerate(self.results) if value.number == number)
        source = self._slot(node.inputs[0], direct)
        random = source if node.random is None else self._random_slot(node.random)
        target = self._new_slot(Slot(SlotKind.WALK, position, self.codes[DType.HALF]))
        self._add("x_round_store", target, source, random, source, len(self.scalars))
        self.scalars.extend(node.scalars)
        self.cost_ns += NS_CHEAP

    def _release_after(self, number: int, node: Node, last_use: dict[int, int]) -> None:
        for value in set(node.inputs):
            if last_use[value.number] == number:
                self._release(value.number)

    def _random_slot(self, random: HostTensor) -> int:
        self.inputs.append(random)
        argument = self.num_outputs + len(self.inputs) - 1
        return self._new_slot(Slot(SlotKind.WALK, argument, self.codes[DType.LONG]))

    def _last_uses(self) -> dict[int, int]:
        """Return for each value that is needed the number of the last instruction that reads it."""
        last = self._kept_uses()
        for number in range(len(self.nodes) - 1, -1, -1):
            if number not in last:
                continue
            for value in self.nodes[number].inputs:
                last[value.number] = max(last.get(value.number, -1), number)
        return last

    def _kept_uses(self) -> dict[int, int]:
        """Return the values that are needed when all has run, each with the number up to which it is held at least."""
        kept = {value.number: value.number for value, _ in self.results}
        return {**kept, **{self.results[place][0].number: len(self.nodes) for place in self.turns}}

    def _direct_results(self) -> dict[int, int]:
        """Return the result that each value is written to in place, by number of the value."""
        direct: dict[int, int] = {}
        for position, (value, held) in enumerate(self.results):
            node = self.nodes[value.number]
            if not (node.operation or (node.operand is not None and self._is_walked(node.kind, node.operand))):
                continue
            if held.dtype is HELD[value.kind] and held.is_contiguous:
                direct.setdefault(value.number, position)
        return direct

    @staticmethod
    def _is_walked(kind: str, held: HostTensor) -> bool:
        """Whether an operand is loaded into a register first: it has another type, or neighbours lie apart."""
        repeated = not any(collapse(held.shape, held.strides)[1][0])
        return not repeated and not (held.dtype is HELD[kind] and held.is_contiguous)

    def _emit_instruction(self, number: int, node: Node, last_use: dict[int, int], direct: dict[int, int]) -> None:
        operands = [self._slot(value, direct) for value in node.inputs]
        if node.random is not None:
            operands.append(self._random_slot(node.random))
        for value in set(node.inputs):
            if last_use[value.number] == number and value.kind == node.kind:
                self._release(value.number)  # the result may take its place: elements are read before written
        if number in direct:
            held = self.results[direct[number]][1]
            result = self._new_slot(Slot(SlotKind.DIRECT, direct[number], self.codes[held.dtype]))
        else:
            result = self._register(node.kind)
        self.slot_by_value[number] = result
        for value in set(node.inputs):
            if last_use[value.number] == number and value.kind != node.kind:
                self._release(value.number)
        a, b, c = (*operands, *([operands[0]] * (3 - len(operands))))
        self._add(node.operation, result, a, b, c, len(self.scalars))
        self.scalars.extend(node.scalars)
        self.cost_ns += (
            NS_SCALAR
            if node.operation in SCALAR_OPERATIONS
            else NS_FUNCTION
            if node.operation in FUNCTIONS
            else NS_CHEAP
        )

    def _emit_stores(self, number: int, direct: dict[int, int]) -> None:
        for position, (value, held) in enumerate(self.results):
            if value.number != number:
                continue
            if direct.get(number) == position:
                self._slot(value, direct)  # an operand that nothing has read yet is loaded into its place
                continue
            source = self._slot(value, direct)
            if position in self.turns:
                self._emit_turns(position, direct)
            elif held.dtype is HELD[value.kind] and held.is_contiguous:
                target = self._new_slot(Slot(SlotKind.DIRECT, position, self.codes[held.dtype]))
                self._add(copy_of(value.kind), target, source, source, source, 0)
            else:
                target = self._walk_slot(position, held)
                source = self._spread(source, value.kind)
                self._add("x_store", target, source, source, source, 0)
            self.cost_ns += NS_CHEAP

    def _spread(self, source: int, kind: str) -> int:
        """Return a slot that holds a value for each element: a repeated constant is not a whole register."""
        if self.slots[source].kind not in (SlotKind.CONSTANT, SlotKind.UNIFORM) or REGISTER_BYTES[kind] == 1:
            return source
        spread = self._register(kind)
        self._add(copy_of(kind), spread, source, source, source, 0)
        return spread

    def _emit_turns(self, position: int, direct: dict[int, int]) -> None:
        """Store a result and the one that it takes turns with, once there are both."""
        places = sorted((position, self.turns[position]), key=lambda place: self.results[place][1].offset)
        values = [self.results[place][0] for place in places]
        last = max(places, key=lambda place: self.results[place][0].number)
        if position != last:
            return
        first, second = (self._spread(self._slot(value, direct), "f") for value in values)
        one, other = (self._walk_slot(place, self.results[place][1]) for place in places)
        self._add("x_store_pair", one, first, second, other, 0)

    def _slot(self, value: Value, direct: dict[int, int]) -> int:
        """Return the slot that holds a value, loading it when it is first needed."""
        if value.number in self.slot_by_value:
            return self.slot_by_value[value.number]
        node = self.nodes[value.number]
        if node.constant is not None:
            integer, place = (0, len(self.scalars)) if node.kind == "f" else (int(node.constant), 0)
            if node.kind == "f":
                self.scalars.append(node.constant)
            slot = self._new_slot(Slot(
                SlotKind.CONSTANT, 0, _code_of_constant(node.kind), (integer, place), (),
                self._new_register(f"constant {node.kind}"),
            ))
        else:
            assert node.operand is not None
            other = self._other_turn(value.number, direct)
            if other is not None:
                return self._load_turns(value.number, other)
            slot = self._operand_slot(node.kind, node.operand, direct.get(value.number))
        self.slot_by_value[value.number] = slot
        return slot

    def _other_turn(self, number: int, direct: dict[int, int]) -> int | None:
        """Return the value that waits to be loaded and takes turns in memory with another one, if there is one."""
        held = self.nodes[number].operand
        if held is None or self.nodes[number].kind != "f" or number in direct:
            return None
        return next((
            other for other in self.needed if other not in self.slot_by_value and other not in direct
            and self.nodes[other].kind == "f" and (lies := self.nodes[other].operand) is not None
            and take_turns(held, lies)
        ), None)

    def _load_turns(self, number: int, other: int) -> int:
        """Load two values that take turns in memory, and return the slot of the first named."""
        slots = {}
        for each in sorted((number, other), key=lambda one: self._held(one).offset):
            held = self._held(each)
            self.inputs.append(held)
            source = self._walk_slot(self.num_outputs + len(self.inputs) - 1, held)
            self.slot_by_value[each] = self._register("f")
            slots[source] = self.slot_by_value[each]
        (first, to_first), (second, to_second) = slots.items()
        self._add("x_load_pair", to_first, first, second, to_second, 0)
        self.cost_ns += 2 * NS_CHEAP
        return self.slot_by_value[number]

    def _held(self, number: int) -> HostTensor:
        held = self.nodes[number].operand
        assert held is not None
        return held

    def _operand_slot(self, kind: str, held: HostTensor, result: int | None) -> int:
        argument = self.num_outputs + len(self.inputs)
        self.inputs.append(held)
        _, (strides,) = collapse(held.shape, held.strides)
        if not any(strides):
            return self._new_slot(Slot(
                SlotKind.UNIFORM, argument, self.codes[held.dtype], (), (), self._new_register(f"constant {kind}"),
            ))
        if held.dtype is HELD[kind] and held.is_contiguous:
            return self._new_slot(Slot(SlotKind.DIRECT, argument, self.codes[held.dtype]))
        source = self._walk_slot(argument, held)
        if result is None:
            register = self._register(kind)
        else:
            register = self._new_slot(Slot(SlotKind.DIRECT, result, self.codes[HELD[kind]]))
        self._add("x_load", register, source, source, source, 0)
        self.cost_ns += NS_CHEAP if strides[-1] <= 1 else 10 * NS_CHEAP
        return register

    def _add(self, operation: str, result: int, a: int, b: int, c: int, scalar: int) -> None:
        """Append an instruction by its name and the slots that it works on."""
        self.program.append(ChainInstruction(OPERATIONS[operation], result, a, b, c, scalar))

    def _walk_slot(self, argument: int, held: HostTensor) -> int:
        shape, (strides,) = collapse(held.shape, held.strides)
        if len(shape) > MAX_DIMS:
            raise ValueError(f"an elementwise operand has {len(shape)} separate dimensions, at most {MAX_DIMS}")
        return self._new_slot(Slot(SlotKind.WALK, argument, self.codes[held.dtype], shape, strides))

    def _register(self, kind: str) -> int:
        """Return a slot for a register, one whose value is no longer needed where there is one."""
        if self.free[kind]:
            return self.free[kind].pop()
        return self._new_slot(Slot(SlotKind.REGISTER, 0, self.codes[HELD[kind]], (), (), self._new_register(kind)))

    def _release(self, number: int) -> None:
        slot = self.slot_by_value.get(number)
        if slot is None or self.slots[slot].kind != SlotKind.REGISTER:
            return
        kind = self.register_kinds[self.slots[slot].register]
        if slot not in self.free[kind]:
            self.free[kind].append(slot)

    def _new_register(self, kind: str) -> int:
        self.register_kinds.append(kind)
        return len(self.register_kinds) - 1

    def _new_slot(self, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots) - 1

    def _laid_out(self) -> tuple[int, int, tuple[int, ...]]:
        """Return the elements of a block, the bytes of registers for it, and the numbers of slots and instructions."""
        per_element = sum(REGISTER_BYTES.get(kind, 0) for kind in self.register_kinds)
        # Registers and the operands read in place share an L1 of 32 KiB.
        block = 1024 if per_element <= 16 else 512 if per_element <= 40 else 256
        offsets, scratch = [], 0
        for kind in self.register_kinds:
            offsets.append(scratch)
            is_line = kind.startswith("constant") and REGISTER_BYTES[kind[-1]] > 1
            scratch += 64 if is_line else REGISTER_BYTES[kind[-1]] * block + 64
        program: list[int] = []
        for slot in self.slots:
            offset = offsets[slot.register] if slot.register >= 0 else 0
            laid_out = ChainSlot(
                kind=slot.kind, argument=slot.argument, dtype=slot.dtype, offset=offset, num_dims=len(slot.shape),
                shape=_of_all_dims(slot.shape), strides=_of_all_dims(slot.strides),
            )
            program += flat("chain", "slot", ChainSlot, laid_out)
        for instruction in self.program:
            program += instruction
        return block, scratch, tuple(program)

    def _append_step(self) -> None:
        elements = self.results[0][1].num_elements
        block, scratch, program = self._laid_out()
        self.chain.plan.step(
            CHAIN, [held for _, held in self.results], self.inputs,
            ints=ChainInts(elements, block, len(self.slots), len(self.program), program),
            scalars=ChainScalars((*self.scalars, 0.0, 0.0, 0.0)),
            items=-(-elements // block), grain=max(1, round(SHARE_NS / (block * self.cost_ns))),
            scratch_bytes=scratch + 64,
            samples=Samples.of(elements, *(held for _, held in self.results), *self.inputs, each=block),
            overwrites=self._overwritten(),
        )

    def _overwritten(self) -> tuple[frozenset[int], ...]:
        """Return for each result the operands whose place it may take; nothing where the chain may refuse a value."""
        if may_refuse(self.program):
            return ()
        in_memory = (SlotKind.DIRECT, SlotKind.WALK)
        arguments = [slot.argument if slot.kind in in_memory else None for slot in self.slots]
        return overwritten(self.program, arguments, len(self.results), len(self.inputs))


def turns_of(results: Sequence[tuple[Value, HostTensor]]) -> dict[int, int]:
    """Return the places of results that take turns in memory with another one, each with the place of that."""
    found: dict[int, int] = {}
    for place, (value, held) in enumerate(results):
        for other, (second, lies) in enumerate(results[:place]):
            if other not in found and value.kind == second.kind == "f" and take_turns(held, lies):
                found |= {place: other, other: place}
                break
    return found


def _code_of_constant(kind: str) -> int:
    """Return how a constant is written: bytes as bools."""
    dtype = HELD[kind]
    return DTYPE_CODES[DType.BOOL if dtype.host_bytes == 1 else dtype]


def _of_all_dims(numbers: Sequence[int]) -> tuple[int, int, int, int, int, int, int, int]:
    """Return a number for each dimension that a slot may have."""
    a, b, c, d, e, f, g, h = (*numbers, *(0,) * (MAX_DIMS - len(numbers)))
    return a, b, c, d, e, f, g, h


# --------------------------------------------------------------------------- what the planner calls
@dataclass(frozen=True, slots=True)
class Stored:
    """What a chain stores, in one step unless that is nothing.

    Attributes:
        chain: The chain.
        results: Values and where they are stored.
        folds: A value that is reduced as it comes, and how; none at first, and no more than one.
    """

    chain: Chain
    results: list[tuple[Value, HostTensor]]
    folds: list[tuple[Value, ChainFold]] = field(default_factory=list)

    def emit(self) -> None:
        """Append the step."""
        emit_results(self.chain, self.results)

    def rounded(self, place: int) -> Value:
        """Return a half result as its store leaves it."""
        return self.chain.rounded(self.results[place][0])


def emit_results(chain: Chain, results: Sequence[tuple[Value, HostTensor]]) -> None:
    """Append the kernel call that stores results of a chain; nothing where they have no elements."""
    if not results or results[0][1].num_elements == 0:
        return
    Emission(chain, [(chain.to_store(value, held), held) for value, held in results]).emit()


def emit_chain(
    ops: Sequence[Op], plan: HostPlanner, shape: Sequence[int] | None = None, order: Sequence[int] | None = None,
) -> Stored:
    """Emit one step for elementwise ops of one shape; values that others read are stored, the rest stay in registers.

    Args:
        ops: In order; :func:`can_join` holds for each, and all results have the same shape.
        plan: Receives the step.
        shape: In which the planner holds operands and results; that of the results unless given.
        order: Of the dimensions, in which elements are gone through, and the planner gives what results are stored in.

    Returns:
        What the step stores.
    """
    chain = Chain(plan, ops[0].outputs[0].shape if shape is None else shape, order)
    for op in ops:
        for result, value in _results_of(op, chain):
            chain.bind(result, value, TO_NEAREST if chain.keeps(op, result, value) else plan.rounding(op, result))
    results = [
        (chain.known[result], plan.output(result)) for op in ops for result in op.outputs if plan.wanted_outside(result)
    ]
    stored = Stored(chain, results)
    stored.emit()
    return stored


def draws_bits(ops: Sequence[Op], plan: HostPlanner, order: Sequence[int]) -> bool:
    """Return whether random bits decide about a half result of a chain: whether any is not that of a half as it is.

    Args:
        ops: As `emit_chain` takes them.
        plan: Says where operands lie.
        order: Of the dimensions, in which elements would be gone through.
    """
    if not any(rounding_stream(op, result) is not None for op in ops for result in op.outputs):
        return False
    chain = Chain(plan, ops[0].outputs[0].shape, order)
    for op in ops:
        for result, value in _results_of(op, chain):
            if rounding_stream(op, result) is not None and not chain.keeps(op, result, value):
                return True
            chain.bind(result, value)
    return False


def _results_of(op: Op, chain: Chain) -> Iterator[tuple[Tensor, Value]]:
    """Yield the results of an op with their values in a chain."""
    spec = spec_of(op)
    assert spec is not None
    assert spec.instruction is not None
    values: Value | tuple[Value, ...] = spec.instruction(chain, op)
    yield from zip(op.outputs, (values,) if isinstance(values, Value) else values, strict=True)


def emit_cast(plan: HostPlanner, dst: HostTensor, src: HostTensor, rounding: Rounding = TO_NEAREST) -> Stored:
    """Emit a copy between two views of the same shape that converts the element type, rounding halves as told.

    Returns:
        What the step stores.
    """
    chain = Chain(plan, dst.shape)
    value = chain.convert(chain.load(src), class_of(dst.dtype))
    if dst.dtype is DType.HALF and rounding is not TO_NEAREST and not chain.is_kept_by(value, rounding):
        value = chain.round(value, rounding)
    stored = Stored(chain, [(value, dst)])
    stored.emit()
    return stored
