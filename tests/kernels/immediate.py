"""A planner for tests that runs each step at once on torch storage, on as many threads as asked for."""

from __future__ import annotations

import torch

from torchipu._kernels.abi import Kernel, run_kernel
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.spec import HostTensor, contiguous_strides, lookup

TORCH_TYPES = {
    DType.FLOAT: torch.float32,
    DType.HALF: torch.float16,
    DType.LONG: torch.int64,
    DType.INT: torch.int32,
    DType.BOOL: torch.bool,
}
OF_TORCH = {value: key for key, value in TORCH_TYPES.items()}
GUARD = 12345.0


class ImmediatePlanner:
    """Implements ``HostPlanner``; keeps a guard word behind every buffer it hands out."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self.storage: list[torch.Tensor] = []
        self.values: dict[Tensor, HostTensor] = {}
        self.steps: list[str] = []
        self.replay: list[tuple[Kernel, list[int], dict[str, object]]] = []

    def bind(self, value: torch.Tensor) -> Tensor:
        """Enter a torch tensor as an operand, strides and all."""
        tensor = Tensor(f"t{len(self.storage)}", tuple(value.shape), OF_TORCH[value.dtype])
        self.storage.append(value)
        self.values[tensor] = HostTensor(len(self.storage) - 1, 0, tuple(value.shape), value.stride(), tensor.dtype)
        return tensor

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        held = self.values[tensor]
        wanted = dtype or held.dtype
        if held.dtype is wanted and (held.is_contiguous or not contiguous):
            return held
        copy = self.read(held).to(TORCH_TYPES[wanted]).contiguous().clone()
        self.storage.append(copy)
        return HostTensor(len(self.storage) - 1, 0, held.shape, contiguous_strides(held.shape), wanted)

    def output(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        self.values[tensor] = self.scratch(tensor.shape, dtype or tensor.dtype)
        return self.values[tensor]

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        self.values[tensor] = view

    def scratch(self, shape: object, dtype: DType = DType.FLOAT) -> HostTensor:
        count = 1
        for size in shape:  # type: ignore[attr-defined]
            count *= size
        flat = torch.full((count + 1,), float("nan") if dtype is DType.FLOAT else 77, dtype=TORCH_TYPES[dtype])
        flat[-1] = 77 if dtype is not DType.FLOAT else GUARD
        self.storage.append(flat)
        return HostTensor(len(self.storage) - 1, 0, tuple(shape), contiguous_strides(tuple(shape)), dtype)  # type: ignore[arg-type]

    def wanted(self, tensor: Tensor) -> bool:
        return True

    def step(
        self,
        kernel: Kernel,
        outputs: object,
        inputs: object,
        *,
        ints: object = (),
        scalars: object = (),
        items: int = 1,
        grain: int = 1,
        scratch_bytes: int = 0,
        reads_outputs: bool = False,
    ) -> None:
        args = [self.storage[t.buffer].data_ptr() + t.offset * t.dtype.host_bytes for t in (*outputs, *inputs)]  # type: ignore[misc]
        options = {
            "ints": list(ints),
            "scalars": list(scalars),
            "items": items,
            "grain": grain,
            "scratch_bytes": scratch_bytes,
        }  # type: ignore[call-overload]
        self.steps.append(kernel.name)
        self.replay.append((kernel, args, options))
        run_kernel(kernel, args, threads=self.threads, **options)
        for t in outputs:  # type: ignore[attr-defined]
            flat = self.storage[t.buffer]
            assert flat.dim() != 1 or t.dtype is not DType.FLOAT or flat[-1].item() == GUARD, (
                f"{kernel.name} wrote past its result"
            )

    def read(self, held: HostTensor) -> torch.Tensor:
        return torch.as_strided(self.storage[held.buffer], held.shape, held.strides, held.offset)


def run_op(
    target: str,
    operands: dict[str, torch.Tensor | None],
    attrs: dict[str, object],
    shapes: list[tuple[tuple[int, ...], DType]],
    threads: int = 1,
    planner: ImmediatePlanner | None = None,
) -> list[torch.Tensor]:
    """Run the emitter of a record on torch tensors and return its results."""
    plan = planner or ImmediatePlanner(threads)
    given = {name: plan.bind(value) for name, value in operands.items() if value is not None}
    outputs = tuple(Tensor(f"r{i}", shape, dtype) for i, (shape, dtype) in enumerate(shapes))
    spec = lookup(target)
    assert spec is not None
    assert spec.emit is not None
    op = Op(spec.kind, tuple(given.values()), outputs, attrs, target, tuple(given))
    assert spec.supports(op)
    spec.emit(op, plan)
    return [plan.read(plan.values[output]).clone() for output in outputs]
