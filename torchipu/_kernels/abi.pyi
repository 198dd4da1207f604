from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from torchipu._kernels.table.kernel import AnyKernel, I, Kernel, S
from torchipu.errors import ExecutionError

_Part = tuple[int, int, Sequence[tuple[int, int, int]]]
_Strand = tuple[int, Sequence[_Part]]

APART: int
IN_ITEMS: int
IN_TURN: int
MAX_LANES: int
CHECKED: bool
HAS_BFLOATS: bool

def without_memory(what: str) -> ExecutionError: ...

def tell_of_left_out_kernels(*, lacks: bool) -> None: ...

def check_table(kernels: Iterable[AnyKernel]) -> None: ...

def run_kernel(
    kernel: Kernel[I, S], args: Sequence[int], ints: I | tuple[()] = ..., scalars: S | tuple[()] = ...,
    items: int = ..., grain: int = ..., threads: int = ..., scratch_bytes: int = ..., round_items: int = ...,
) -> None: ...

def call_kernel(
    kernel: Kernel[I, S], args: Sequence[int], ints: I | tuple[()] = ..., scalars: S | tuple[()] = ...,
    items: int = ...,
) -> None: ...

def run_vertices(
    calls: Sequence[tuple[AnyKernel, int, Sequence[Any], Sequence[Any], int, int]], places: np.ndarray,
) -> None: ...

def copy_memory(copies: Sequence[tuple[int, int, int]], threads: int, before_run: bool = ...) -> None: ...

class Samples:
    def __init__(self, rows: Sequence[tuple[int, int, int]]) -> None: ...
    def take(self) -> None: ...
    def changed(self) -> list[int]: ...

def are_row_major(tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> bool: ...

def members_of(
    model: torch.nn.Module,
) -> tuple[tuple[bool, ...], tuple[tuple[int, bool], ...], tuple[int, ...]]: ...

class ModelMembers:
    found: tuple[tuple[bool, ...], tuple[tuple[int, bool], ...], tuple[int, ...]]
    def __init__(self, model: torch.nn.Module) -> None: ...
    def are_same(self) -> bool: ...

class Footprint:
    def __init__(self, model: torch.nn.Module, tensors: Iterable[torch.Tensor]) -> None: ...
    def fetch(self) -> None: ...

def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]: ...

def fence(address: int, num_bytes: int, spans: Iterable[tuple[int, int]]) -> None: ...

class KernelTrap(Exception):
    step: int
    trap: int
    reason: str
    micro_batch: int
    replica: int

class Plan:
    num_steps: int
    has_ended: bool
    def __init__(self, num_buffers: int) -> None: ...
    def add_step(
        self, kernel: Kernel[I, S], buffers: Sequence[int], byte_offsets: Sequence[int], ints: I | tuple[()],
        scalars: S | tuple[()], items: int, grain: int, scratch_bytes: int, together: bool = ..., order: int = ...,
        lane_strides: Sequence[int] = ..., joined: tuple[int, Sequence[int], I, int, int] | None = ...,
        round_items: int = ...,
    ) -> int: ...
    def end_step(
        self, kernel: Kernel[I, S], ints: I | tuple[()], from_: int, to: int, random: int = ..., item_floats: int = ...,
    ) -> None: ...
    def time_steps(self) -> None: ...
    def watch(self, watcher: Callable[[int], None] | None) -> None: ...
    def times(self) -> list[tuple[float, int]]: ...
    def add_callback(self, callback: object) -> int: ...
    def add_transfer(self, callback: Callable[[int], None], buffer: int, byte_offset: int = ...) -> int: ...
    def add_jump(self, target: int, buffer: int = ..., byte_offset: int = ...) -> int: ...
    def set_phases(self, segments: Sequence[tuple[int, int, Sequence[Sequence[_Strand]]]]) -> None: ...
    def bind(
        self, buffer: int, address: int, stride_bytes: int = ..., replica_stride_bytes: int = ..., divisor: int = ...,
        modulus: int = ..., lane_stride_bytes: int = ...,
    ) -> None: ...
    def bind_tensors(self, first: int, tensors: Iterable[torch.Tensor]) -> None: ...
    def run(
        self, prologue: tuple[int, int], body: tuple[int, int], update: tuple[int, int], micro_batches: int,
        iterations: int, threads: int, counters: int = ..., num_counters: int = ..., borrow: bool = ...,
        replicas: int = ..., beside: tuple[int, int] = ..., counter_buffer: int = ...,
        reset: tuple[int, int] | None = ..., fold: tuple[int, int] | None = ...,
        order: np.ndarray | None = ...,
    ) -> None: ...

class Call:
    def __init__(
        self, plan: Plan, inputs: Sequence[tuple[int, torch.dtype, int, tuple[int, ...] | None]], rooms: Sequence[Any],
        first_made: int, results: Sequence[tuple[int | None, int | None]], ranges: Sequence[tuple[int, int]],
        threads: int, torch: Any, empty: Callable[[], list[torch.Tensor]], lock: Any, arena: Any = ...,
        arena_buffer: int = ..., resting: Sequence[None] = ...,
        frozen: Sequence[tuple[int | None, torch.Tensor | None]] = ..., prepared: Any = ...,
        explained: Callable[[KernelTrap], Exception] | None = ..., packed: Sequence[int] | None = ...,
        block: tuple[int, int, Sequence[tuple[int, int]]] | None = ..., draws: Any = ...,
    ) -> None: ...
    def __call__(self, arguments: Sequence[Any]) -> list[Any] | None: ...
