"""A planner just large enough to run the emitters of one op, or of a chain, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from torchipu._kernels.abi import CHECKED, run_kernel
from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops import view
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import can_join
from torchipu.optable.emission import emit_chain
from torchipu.optable.host_tensor import TO_NEAREST, HostTensor, Rounding, contiguous_strides
from torchipu.optable.planner import ChainFold, Joining
from torchipu.optable.samples import Samples
from torchipu.optable.spec import lookup

DTYPES = {
    torch.float16: DType.HALF, torch.float32: DType.FLOAT, torch.int32: DType.INT, torch.int64: DType.LONG,
    torch.int16: DType.SHORT, torch.int8: DType.CHAR, torch.uint8: DType.UNSIGNED_CHAR, torch.bool: DType.BOOL,
    torch.bfloat16: DType.BFLOAT,
}
GUARD_BYTES = 128
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}


class MiniPlanner:
    """Runs each step as soon as it is emitted, on guarded buffers."""

    def __init__(self, threads: int = 1, *, is_hoisting: bool = False) -> None:
        self.threads = threads
        self.is_hoisting = is_hoisting
        self.runs = 1
        self.multiplies_bfloats = False
        self.buffers: list[torch.Tensor] = []
        self.values: dict[Tensor, HostTensor] = {}
        self.members: frozenset[Op] = frozenset()
        self.read_outside: set[Tensor] = set()
        self.casts: list[tuple[Tensor, HostTensor]] = []
        self.steps: list[str] = []
        self.random = torch.tensor([1234, 0, 7, 0])

    def hold(self, tensor: torch.Tensor) -> HostTensor:
        base = tensor if tensor.numel() else torch.zeros(1, dtype=tensor.dtype)
        self.buffers.append(base)
        return HostTensor(len(self.buffers) - 1, 0, tuple(tensor.shape), tuple(tensor.stride()), DTYPES[tensor.dtype])

    def fetch(self, held: HostTensor) -> torch.Tensor:
        base = self.buffers[held.buffer]
        return base.as_strided(held.shape, held.strides, base.storage_offset() + held.offset)

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        held = self.values[tensor]
        if held.dtype is (dtype or held.dtype) and (held.is_contiguous or not contiguous):
            return held
        fresh = self.scratch(held.shape, dtype or held.dtype)
        view.emit_copy(self, fresh, held)
        return fresh

    def stored_type(self, tensor: Tensor) -> DType:
        return self.values[tensor].dtype

    def may_have_floats(self, tensor: Tensor) -> bool:
        return False

    def foldable(self, tensor: Tensor) -> HostTensor | None:
        """Return None: calls come one by one."""
        return None

    def fold_chain(self, tensor: Tensor, fold: ChainFold) -> None:
        """Refuse: nothing is foldable."""
        raise NotImplementedError(f"{tensor} is reduced by itself")

    def output(
        self, tensor: Tensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        self.values[tensor] = self.scratch(tensor.shape, tensor.dtype)
        if dtype is None or dtype is tensor.dtype:
            return self.values[tensor]
        computed = self.scratch(tensor.shape, dtype)
        self.casts.append((tensor, computed))
        return computed

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        self.values[tensor] = view

    def value_as_held(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        return self.value(tensor, dtype)

    def expected_order(self, tensor: Tensor) -> tuple[int, ...] | None:
        return None

    def expected_output(self, tensor: Tensor) -> HostTensor:
        return self.output(tensor)

    def placed_output(self, tensor: Tensor) -> HostTensor:
        return self.output(tensor)

    def output_as_held(
        self, tensor: Tensor, held: HostTensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        return self.output(tensor, dtype, rounded_as=rounded_as)

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        self.values[result] = self.values[state]
        return self.values[state]

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        num_bytes = max(1, torch.Size(shape).numel()) * dtype.host_bytes
        # The checked flavour also sees reads, where the memory that is allocated ends with the buffer.
        guard = 0 if CHECKED else GUARD_BYTES
        raw = torch.full((num_bytes + 2 * guard,), 0x5A, dtype=torch.uint8)
        self.buffers.append(raw[guard : guard + num_bytes].view(TORCH_DTYPES[dtype]))
        return HostTensor(len(self.buffers) - 1, 0, tuple(shape), contiguous_strides(shape), dtype)

    def constant(self, values: Sequence[float], dtype: DType) -> HostTensor:
        return self.hold(torch.tensor(values, dtype=TORCH_DTYPES[dtype]))

    def random_state(self, op: Op) -> HostTensor:
        return self.hold(self.random)

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        return TO_NEAREST

    def wanted(self, tensor: Tensor) -> bool:
        return True

    def wanted_outside(self, tensor: Tensor) -> bool:
        return not self.members or tensor in self.read_outside

    def step(
        self, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: I | tuple[()] = (), scalars: S | tuple[()] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, adds_up: bool = False, joining: Joining | None = None,
        writes: Sequence[Blocks | None] = (), samples: Samples | None = None,
        overwrites: Sequence[frozenset[int]] = (), rounds: int = 1, op: Op | None = None,
    ) -> None:
        if items <= 0:
            return
        self.steps.append(kernel.name)
        for held in (*outputs, *inputs):
            self.check_extent(held)
        addresses = [
            self.buffers[t.buffer].data_ptr() + t.offset * t.dtype.host_bytes for t in (*outputs, *inputs)
        ]
        round_items = items // rounds if rounds > 1 else 0
        run_kernel(kernel, addresses, ints, scalars, items, grain, self.threads, scratch_bytes, round_items)
        for written in outputs:
            self.check_guards(self.buffers[written.buffer])

    def stays_floats(self, held: HostTensor) -> bool:
        return True

    def packs_once(self, held: HostTensor) -> bool:
        return False

    def only_where(self, flag: object) -> AbstractContextManager[None]:
        assert flag is True  # no sizes here
        return nullcontext()

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    def finish(self, outputs: Sequence[Tensor]) -> list[torch.Tensor]:
        """Convert what was computed in another type, and return the values of the results."""
        for tensor, computed in self.casts:
            view.emit_copy(self, self.values[tensor], computed)
        return [self.fetch(self.values[tensor]) for tensor in outputs]

    def check_extent(self, held: HostTensor) -> None:
        """Check that an operand ends where its buffer does, or before; that it is written so, guards tell."""
        if 0 in held.shape:
            return
        base = self.buffers[held.buffer]
        last = sum((size - 1) * step for size, step in zip(base.shape, base.stride(), strict=True))
        place = held.offset + sum((size - 1) * step for size, step in zip(held.shape, held.strides, strict=True))
        end = (place + 1) * held.dtype.host_bytes
        assert end <= (last + 1) * base.element_size(), f"{held} ends behind its buffer, {tuple(base.shape)}"

    def check_guards(self, buffer: torch.Tensor) -> None:
        num_bytes = buffer.numel() * buffer.element_size()
        storage = torch.tensor([], dtype=torch.uint8).set_(buffer.untyped_storage())
        if storage.numel() != num_bytes + 2 * GUARD_BYTES:
            return
        assert bool((storage[:GUARD_BYTES] == 0x5A).all()), "wrote before the buffer"
        assert bool((storage[GUARD_BYTES + num_bytes :] == 0x5A).all()), "wrote past the buffer"


def overload_of(target: str) -> torch._ops.OpOverload:
    """Return what runs a target in eager mode."""
    namespace, name, overload = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def bind_call(target: str, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return all schema arguments of an ATen call by name, defaults filled in."""
    schema = overload_of(target)._schema
    bound: dict[str, object] = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(args):
            bound[argument.name] = args[position]
        else:
            bound[argument.name] = kwargs.get(argument.name, argument.default_value)
    return bound


def make_op(
    target: str, args: Sequence[object], kwargs: Mapping[str, object], tensors: dict[int, Tensor],
    results: Sequence[torch.Tensor],
) -> Op:
    """Build the op of an ATen call; ``tensors`` maps ids of torch tensors to graph tensors."""
    operands, inputs, attrs = [], [], {}
    for name, value in bind_call(target, args, kwargs).items():
        if isinstance(value, torch.Tensor):
            operands.append(name)
            inputs.append(tensors[id(value)])
        elif isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
            operands.append(f"{name}[{'x' * len(value)}]")
            inputs.extend(tensors[id(v)] for v in value)
        elif name not in ("memory_format", "layout", "device", "pin_memory", "generator", "non_blocking"):
            attrs[name] = DTYPES[value] if isinstance(value, torch.dtype) else value
    spec = lookup(target)
    assert spec is not None, target
    outputs = tuple(Tensor(f"r{i}", tuple(r.shape), DTYPES[r.dtype]) for i, r in enumerate(results))
    return Op(spec.kind, tuple(inputs), outputs, attrs, target, tuple(operands))


def run_op(
    target: str, *args: object, threads: int = 1, planner: MiniPlanner | None = None,
    results: Sequence[torch.Tensor] | None = None, **kwargs: object,
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Run an op through its record and through eager ATen.

    Returns:
        Our results and eager's.
    """
    if results is None:
        eager = overload_of(target)(*args, **kwargs)
        results = tuple(eager) if isinstance(eager, (tuple, list)) else (eager,)
    plan = planner or MiniPlanner(threads)
    tensors: dict[int, Tensor] = {}
    for value in (*args, *kwargs.values()):
        for member in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(member, torch.Tensor) and id(member) not in tensors:
                graph_tensor = Tensor(f"x{len(tensors)}", tuple(member.shape), DTYPES[member.dtype])
                tensors[id(member)] = graph_tensor
                plan.values[graph_tensor] = plan.hold(member)
    op = make_op(target, args, kwargs, tensors, results)
    spec = lookup(target)
    assert spec is not None
    assert spec.supports(op), f"{target} is not supported"
    if spec.instruction is not None:
        emit_chain([op], plan)
    else:
        assert spec.emit is not None
        spec.emit(op, plan)
    return tuple(plan.finish(op.outputs)), tuple(results)


class Ref:
    """The result of an earlier call of a chain, by number."""

    def __init__(self, call: int) -> None:
        self.call = call


def run_chain(
    calls: Sequence[tuple[str, tuple[object, ...], Mapping[str, object]]], keep: Sequence[int], threads: int = 1,
) -> tuple[list[torch.Tensor], list[torch.Tensor], MiniPlanner]:
    """Run calls as one chain; only those in ``keep`` are stored.

    Returns:
        What we store, what eager gives op by op, and the planner.
    """
    plan = MiniPlanner(threads)
    tensors: dict[int, Tensor] = {}
    eager: list[torch.Tensor] = []
    ops: list[Op] = []
    for target, args, kwargs in calls:
        real = tuple(eager[a.call] if isinstance(a, Ref) else a for a in args)
        result = overload_of(target)(*real, **kwargs)
        for value in real:
            if isinstance(value, torch.Tensor) and id(value) not in tensors:
                graph_tensor = Tensor(f"x{len(tensors)}", tuple(value.shape), DTYPES[value.dtype])
                tensors[id(value)] = graph_tensor
                plan.values[graph_tensor] = plan.hold(value)
        op = make_op(target, real, kwargs, tensors, [result])
        tensors[id(result)] = op.outputs[0]
        eager.append(result)
        ops.append(op)
    plan.members = frozenset(ops)
    plan.read_outside = {ops[i].outputs[0] for i in keep}
    assert all(can_join(op) for op in ops)
    emit_chain(ops, plan)
    return [plan.fetch(plan.values[ops[i].outputs[0]]) for i in keep], [eager[i] for i in keep], plan
