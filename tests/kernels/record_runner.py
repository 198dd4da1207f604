"""Runs one op through the emitter of its record on torch tensors, with nothing else of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from torchipu._kernels.abi import run_kernel
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.spec import HostTensor, contiguous_strides, lookup

TORCH = {
    DType.HALF: torch.float16, DType.FLOAT: torch.float32, DType.INT: torch.int32, DType.LONG: torch.int64,
    DType.SHORT: torch.int16, DType.CHAR: torch.int8, DType.UNSIGNED_CHAR: torch.uint8, DType.BOOL: torch.bool,
}
DTYPES = {torch_dtype: dtype for dtype, torch_dtype in TORCH.items()}


class Recorder:
    """A host planner over torch tensors that runs each step when it is asked for."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.memory: list[torch.Tensor] = []
        self.values: dict[Tensor, HostTensor] = {}
        self.casts: list[tuple[Tensor, HostTensor]] = []

    def hold(self, memory: torch.Tensor) -> HostTensor:
        self.memory.append(memory)
        shape = tuple(memory.shape)
        return HostTensor(len(self.memory) - 1, 0, shape, contiguous_strides(shape), DTYPES[memory.dtype])

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        held = self.values[tensor]
        return held if dtype in (None, held.dtype) else self.hold(self.memory[held.buffer].to(TORCH[dtype]))

    def output(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        if dtype not in (None, tensor.dtype):
            computed = self.scratch(tensor.shape, dtype)
            self.casts.append((tensor, computed))
            return computed
        self.values[tensor] = self.scratch(tensor.shape, tensor.dtype)
        return self.values[tensor]

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        self.values[result] = self.values[state]
        return self.values[state]

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        # What nobody wrote must not look like a result.
        return self.hold(torch.full(tuple(shape), float("nan") if dtype.is_floating else 77).to(TORCH[dtype]))

    def constant(self, values: Sequence[float], dtype: DType) -> HostTensor:
        return self.hold(torch.tensor(values, dtype=TORCH[dtype]))

    def wanted(self, tensor: Tensor) -> bool:
        return True

    def step(
        self, kernel, outputs, inputs, *, ints=(), scalars=(), items=1, grain=1, scratch_bytes=0, reads_outputs=False,
    ):
        args = [self.memory[held.buffer].data_ptr() for held in (*outputs, *inputs)]
        run_kernel(kernel, args, ints, scalars, items, max(1, grain), self.threads, scratch_bytes)


def run_record(
    target: str, operands: Mapping[str, object], attrs: Mapping[str, object], results: Sequence[object],
    threads: int = 1,
) -> list[torch.Tensor]:
    """Run the emitter of a record.

    Args:
        target: Overload.
        operands: Tensors, or lists of tensors and Nones, by schema name.
        attrs: The other arguments.
        results: For each present result a tensor of its shape and dtype (or ``(shape, dtype)``).
        threads: Host threads.

    Returns:
        The results.
    """
    recorder = Recorder(threads)
    names, inputs = [], []
    for name, given in operands.items():
        members = given if isinstance(given, (list, tuple)) else [given]
        marks = "".join("_" if member is None else "x" for member in members)
        names.append(f"{name}[{marks}]" if isinstance(given, (list, tuple)) else name)
        for member in members:
            if member is None:
                continue
            tensor = Tensor(f"i{len(inputs)}", tuple(member.shape), DTYPES[member.dtype])
            recorder.values[tensor] = recorder.hold(member.detach().clone().contiguous())
            inputs.append(tensor)
    outputs = []
    for result in results:
        shape, dtype = (tuple(result.shape), result.dtype) if isinstance(result, torch.Tensor) else result
        outputs.append(Tensor(f"o{len(outputs)}", tuple(shape), DTYPES[dtype]))
    spec = lookup(target)
    assert spec is not None, target
    assert spec.emit is not None, target
    op = Op(spec.kind, tuple(inputs), tuple(outputs), dict(attrs), target, tuple(names))
    assert spec.supports(op), f"{target} is not served"
    spec.emit(op, recorder)
    for tensor, computed in recorder.casts:
        recorder.values[tensor] = recorder.hold(recorder.memory[computed.buffer].to(TORCH[tensor.dtype]))
    return [recorder.memory[recorder.values[tensor].buffer] for tensor in outputs]


def serves(target: str, operands: Mapping[str, object], attrs: Mapping[str, object]) -> bool:
    """Tell whether a record takes these operands."""
    names, inputs = [], []
    for name, given in operands.items():
        members = given if isinstance(given, (list, tuple)) else [given]
        marks = "".join("_" if member is None else "x" for member in members)
        names.append(f"{name}[{marks}]" if isinstance(given, (list, tuple)) else name)
        inputs += [Tensor(f"i{len(inputs)}", tuple(m.shape), DTYPES[m.dtype]) for m in members if m is not None]
    spec = lookup(target)
    assert spec is not None, target
    return spec.supports(Op(spec.kind, tuple(inputs), (), dict(attrs), target, tuple(names)))
