"""Compares functions compiled for the IPU with eager float64: values, gradients, threads, native ops, device costs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchipu.backend.program as door
from torchipu.backend import ipu_backend
from torchipu.device.generic import lower_generic
from torchipu.host.executor import GraphExecutor
from torchipu.ir.graph import Op
from torchipu.optable.spec import spec_of
from torchipu.target import lookup_target

TILES = (1, 3, 1472)
TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}


# ---------------------------------------------------------------------- two judges, by the door
def judge(
    function: Callable[..., Any], *args: Any, dtype: torch.dtype = torch.float32, native: bool = True,
    rtol: float | None = None, atol: float | None = None, allowed: tuple[str, ...] = (),
) -> list[Op]:
    """Assert that ``torch.compile`` of a function gives what eager float64 gives, and the same bits on 3 threads.

    Args:
        function: Takes ``args``; what it returns may be any structure of tensors.
        *args: Floating tensors are cast to ``dtype``, and to float64 for the judge; those that need a gradient get one.
        dtype: Type to run in.
        native: Whether every op must have a record.
        rtol: Relative tolerance, of the largest value; None for that of the dtype.
        atol: Absolute tolerance; None for that of the dtype.
        allowed: Targets that may run through the generic codelet although ``native``.

    Returns:
        The ops of all graphs that were run.
    """
    rtol, atol = (TOLERANCES[dtype] if given is None else given for given in (rtol, atol))
    cast = pytree.tree_map_only(torch.Tensor, lambda t: _as(t, dtype), args)
    exact = outcome(function, pytree.tree_map_only(torch.Tensor, lambda t: _as(t, torch.float64), cast))
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", fullgraph=True, dynamic=False)
    mine, ops = _on_one_thread_and_three(lambda: compiled, cast)
    assert len(mine) == len(exact)
    for place, (ours, wanted) in enumerate(zip(mine, exact, strict=True)):
        _assert_close(place, ours, wanted, rtol, atol + rtol * _largest(wanted))
    if native:
        _assert_native(ops, allowed)
    assert_costs_sane(ops)
    return ops


def check(
    function: Callable[..., Any], *args: torch.Tensor, tolerance: float | None = None, allowed: tuple[str, ...] = (),
    skip: tuple[int, ...] = (),
) -> list[Op]:
    """Assert that a function, compiled without the time of Dynamo's tracing, has the element types of eager, the values
    and gradients of eager float64, and the same bits on one and on three threads.

    Args:
        function: Takes ``args``; gives a tensor or several.
        *args: Those that need a gradient get one.
        tolerance: Of an element, relative and absolute; None for that of the element type.
        allowed: Targets that may run through the generic codelet.
        skip: Results whose values eager leaves open, such as positions among equals.

    Returns:
        The ops of all graphs that were run.
    """
    if tolerance is None:
        tolerance = max((TOLERANCES[a.dtype] for a in args if a.is_floating_point()), default=2e-5)
    mine, ops = _on_one_thread_and_three(lambda: _directly(function, args, threads=1), args)
    eager = _flat(function(*(arg.detach() for arg in args)))
    exact = outcome(function, [_as(arg, torch.float64) for arg in args])
    assert len(mine) == len(exact)
    for place, (ours, wanted) in enumerate(zip(mine, exact, strict=True)):
        if place < len(eager):
            assert ours.dtype == eager[place].dtype, f"result {place}: {ours.dtype}, not {eager[place].dtype}"
        if place in skip:
            assert ours.shape == wanted.shape
            continue
        bound = tolerance if place < len(eager) else 5 * tolerance  # gradients pass through two kernels and more
        _assert_close(place, ours, wanted, bound, bound)
    _assert_native(ops, allowed)
    assert_costs_sane(ops)
    return ops


def run(function: Callable[..., Any], *args: torch.Tensor, threads: int = 1) -> tuple[torch.Tensor, ...]:
    """Run a function through the backend, without Dynamo, on the host threads given."""
    return tuple(_directly(function, args, threads)(*args))


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        return _flat(self.function(*args))


def _directly(function: Callable[..., Any], args: Sequence[torch.Tensor], threads: int) -> Callable[..., Any]:
    return ipu_backend(_Function(function), [_leaf(arg) for arg in args], options={"host_threads": threads})


# ---------------------------------------------------------------------- running
def outcome(function: Callable[..., Any], args: Any) -> list[torch.Tensor]:
    """Return the tensors that a call gives, then the gradients of the sum of all floating ones, weighted."""
    args = pytree.tree_map_only(torch.Tensor, _leaf, args)
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    results = [r for r in pytree.tree_leaves(function(*args)) if isinstance(r, torch.Tensor)]
    differentiable = [r for r in results if r.requires_grad]
    if not differentiable:
        return results
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in differentiable]
    torch.autograd.backward(differentiable, weights)
    return [r.detach() for r in results] + [leaf.grad for leaf in leaves if leaf.grad is not None]


def _on_one_thread_and_three(
    compiled: Callable[[], Callable[..., Any]], args: Any,
) -> tuple[list[torch.Tensor], list[Op]]:
    """Compile and run; assert that the number of threads changes no bit; return the outcome, and the ops of it."""
    with recorded() as executors:
        function = compiled()
        single = outcome(function, args)
        for executor in executors:
            executor.threads = 3
        several = outcome(function, args)
    for place, (one, three) in enumerate(zip(single, several, strict=True)):
        assert torch.equal(_bits(one), _bits(three)), f"result {place} depends on the number of threads"
    return single, [op for executor in executors for op in executor.graph.ops]


@contextlib.contextmanager
def recorded() -> Iterator[list[GraphExecutor]]:
    """Collect the executors that the backend makes; they begin with one thread."""
    made: list[GraphExecutor] = []

    class Recorded(GraphExecutor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.threads = 1
            made.append(self)

    known, door.GraphExecutor = door.GraphExecutor, Recorded
    try:
        yield made
    finally:
        door.GraphExecutor = known


# ---------------------------------------------------------------------- comparing
def _assert_close(place: int, ours: torch.Tensor, wanted: torch.Tensor, rtol: float, atol: float) -> None:
    assert ours.shape == wanted.shape, f"result {place}: {tuple(ours.shape)}, not {tuple(wanted.shape)}"
    torch.testing.assert_close(
        ours.to(wanted.dtype), wanted, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"result {place}: {text}",
    )


def _assert_native(ops: Sequence[Op], allowed: tuple[str, ...]) -> None:
    generic = sorted({op.target for op in ops if spec_of(op) is None} - set(allowed))
    assert not generic, f"generic: {generic}"


def assert_costs_sane(ops: Sequence[Op]) -> None:
    """Assert that every op with elements costs cycles, and on more tiles no more than on fewer."""
    for op in ops:
        record = spec_of(op)
        if record is not None and record.is_view:
            continue
        lower = lower_generic if record is None else record.lower
        totals = []
        for tiles in TILES:
            target = dataclasses.replace(lookup_target("mk2"), num_tiles=tiles)
            sets = lower(op, target)
            assert all(s.codelet.source and s.gathered_bytes >= 0 and s.temporary_bytes >= 0 for s in sets), op.target
            cycles = 0
            for vertices in sets:
                grains = -(-vertices.elements // vertices.grain)
                used = max(1, min(tiles, vertices.max_tiles or tiles))
                mine = min(vertices.elements, -(-grains // used) * vertices.grain)
                spent = vertices.codelet.cycles(target, vertices.work(mine))
                assert spent > 0, f"{op.target}: {vertices.codelet.name} costs {spent} cycles"
                cycles += spent
            totals.append(cycles)
        # A spread reduction has further levels, which tiny ops do not pay back.
        assert totals[2] <= totals[0] + 20_000, f"{op.target}: {totals} cycles on {TILES} tiles"


def _flat(results: Any) -> tuple[torch.Tensor, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _leaf(arg: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the same layout in memory of its own; expanded operands stay expanded."""
    base = arg.detach()
    held = base if any(stride == 0 for stride in base.stride()) else base.clone(memory_format=torch.preserve_format)
    return held.requires_grad_(arg.requires_grad)


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def _largest(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
