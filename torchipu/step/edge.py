"""The edge of a call: where a program reads arguments and writes results, worked out once and bound at each call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from torchipu._kernels.abi import without_memory
from torchipu.capture.fx_types import foreign_kind
from torchipu.errors import ExecutionError
from torchipu.host import output_memory
from torchipu.host.border import resolved
from torchipu.host.bound_plan import FIRST_EXTERNAL, BoundPlan
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.output_memory import Room
from torchipu.host.resident import Returned
from torchipu.ir.graph import Tensor

Advance = tuple[int, ...]
"""How a buffer advances from micro-batch to micro-batch and from replica to replica: as `Plan.bind` takes it."""


class _Argument(NamedTuple):
    """An argument that the program reads; ``place`` is that among the tensors of a call."""

    place: int
    name: str
    number: int
    dtype: torch.dtype
    advance: Advance


class _Result(NamedTuple):
    """A result, of the last micro-batch alone or of all; where ``rule`` is None its memory is what is handed back."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    advance: Advance
    is_last: bool
    rule: Returned | None


class Arguments:
    """What a program reads that the user gives it.

    Args:
        bound: The program.
        tensors: Of the graph, one for each tensor of a call.
        constants: Those that stay from call to call.
        pieces: Micro-batches of a call times groups of replicas that each have values of their own.
        groups: Such groups.
        sharing: How replicas share a value: neighbours that do, and after how many values they begin again.
    """

    def __init__(
        self, bound: BoundPlan, tensors: Sequence[Tensor], constants: Sequence[tuple[Tensor, torch.Tensor]], *,
        pieces: int, groups: int, sharing: tuple[int, int],
    ) -> None:
        self._engine = bound.engine
        number = bound.number_of_input
        self._constants = [
            (number[tensor], TORCH_DTYPES[tensor.dtype], value) for tensor, value in constants if tensor in number
        ]
        self._arguments = []
        for place, tensor in enumerate(tensors):
            if tensor in number:
                stride = tensor.num_elements * tensor.dtype.host_bytes if pieces > 1 else 0
                self._arguments.append(_Argument(
                    place, tensor.name, number[tensor], TORCH_DTYPES[tensor.dtype], (stride * groups, stride, *sharing),
                ))

    def bind(
        self, tensors: Sequence[torch.Tensor], overlap: Callable[[int, int], bool] | None = None,
    ) -> list[torch.Tensor]:
        """Let the program read these tensors.

        Args:
            tensors: Of a call; one that lies in another way than kernels read is copied.
            overlap: Whether the program writes between two addresses: what lies there is copied.

        Returns:
            What has to live until the program has run.

        Raises:
            ExecutionError: A tensor has elements and no memory, or is none that the IPU holds.
        """
        kept = []
        for place, name, number, dtype, advance in self._arguments:
            value = tensors[place]
            if value.layout is not torch.strided:
                raise _refusal_of(value, name)
            if not value.data_ptr() and value.numel() and not value._is_zerotensor():
                raise _refusal_of(value, name)
            value = _as_read(value, dtype)
            address = value.data_ptr()
            if overlap is not None and overlap(address, address + value.nbytes):
                value = value.detach().clone()
                address = value.data_ptr()
            self._engine.bind(number, address, *advance)
            kept.append(value)
        for number, dtype, value in self._constants:
            value = _as_read(value, dtype)
            self._engine.bind(number, value.data_ptr())
            kept.append(value)
        return kept


def _refusal_of(value: torch.Tensor, name: str) -> ExecutionError:
    """Return why a program cannot read a tensor that came after others of its shape."""
    kind, remedy = foreign_kind(value)
    if kind:
        return ExecutionError(f"argument {name!r}: {kind} cannot be held by the IPU", remedy=remedy)
    return without_memory(f"of shape {list(value.shape)}, argument {name!r},")


def _as_read(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a value as kernels read it: of a type, row-major and as its memory has it."""
    if value.dtype is dtype and value.is_contiguous() and not (
        value.is_neg() or value.is_conj() or value._is_zerotensor()
    ):
        return value
    return resolved(value.detach()).to(dtype).contiguous()


class Results:
    """What a program hands back.

    Args:
        bound: The program.
        rules: Which micro-batches' results are returned, for each output of its graph.
        runs: Micro-batches of a call.
        micro_batches: Those of an iteration.
        iterations: Device iterations.
        replicas: Replicas.
        is_by_run: Whether memory has the results of each run apart: something stands between it and who called.
    """

    def __init__(
        self, bound: BoundPlan, rules: Sequence[Returned], *, runs: int, micro_batches: int, iterations: int,
        replicas: int, is_by_run: bool,
    ) -> None:
        self._engine = bound.engine
        self._iterations, self._replicas, self._is_by_run = iterations, replicas, is_by_run
        # Micro-batches that run side by side write side by side, too.
        beside = bound.lanes.micro_batches
        self._last = (micro_batches - 1) % beside
        first = FIRST_EXTERNAL + len(bound.graph.inputs)
        self._results = []
        for place, (tensor, rule) in enumerate(zip(bound.graph.outputs, rules, strict=True)):
            is_last = rule.mode == "final"
            kept = beside if is_last else runs
            stride = tensor.num_elements * tensor.dtype.host_bytes
            apart = stride * replicas
            shape: tuple[int, ...] = (kept, replicas, *tensor.shape)
            is_final = not is_by_run and (kept == 1 if is_last else rule.mode == "all")
            self._results.append(_Result(
                first + place, rule.shape(kept * replicas, tensor.shape) if is_final else shape,
                TORCH_DTYPES[tensor.dtype], (0 if is_last else apart, stride, 1, 0, apart if is_last else 0),
                is_last, None if is_final else rule,
            ))
        self._rooms = [Room.of(each.shape, each.dtype) for each in self._results]
        self._memory = output_memory.SHARED.get()

    def bind(self) -> list[torch.Tensor]:
        """Return memory that nobody has, to which the program writes."""
        made = self._memory.empty(self._rooms)
        for each, value in zip(self._results, made, strict=True):
            self._engine.bind(each.number, value.data_ptr(), *each.advance)
        return made

    def by_run(self, memory: Sequence[torch.Tensor], *, keeps_lanes: bool = False) -> list[torch.Tensor]:
        """Return each result as ``[runs x replicas, ...]``; of the last micro-batch alone as ``[replicas, ...]``.

        Args:
            memory: What `bind` returned.
            keeps_lanes: Whether the last one stays ``[lanes, replicas, ...]``, for whoever knows which lane had it.
        """
        assert self._is_by_run
        return [
            value if keeps_lanes and each.is_last else self._of_runs(value, each)
            for each, value in zip(self._results, memory, strict=True)
        ]

    def joined(self, memory: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return each result in the shape in which it is handed back."""
        return [
            value if each.rule is None
            else each.rule.join(self._of_runs(value, each), self._iterations, self._replicas)
            for each, value in zip(self._results, memory, strict=True)
        ]

    def _of_runs(self, value: torch.Tensor, result: _Result) -> torch.Tensor:
        return value[self._last] if result.is_last else value.flatten(0, 1)
