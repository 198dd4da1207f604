"""Compares a function compiled for the IPU with eager float64: values, gradients, threads, native ops, device costs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchipu.backend as door
from torchipu.ir.graph import Op
from torchipu.ops.spec import spec_of
from torchipu.runtime.executor import GraphExecutor
from torchipu.target import lookup_target

TILES = (1, 3, 1472)
TOLERANCES = {torch.float32: (2e-5, 2e-5), torch.float16: (4e-3, 4e-3)}


def judge(
    function: Callable[..., Any], *args: Any, dtype: torch.dtype = torch.float32, native: bool = True,
    rtol: float | None = None, atol: float | None = None, allowed: tuple[str, ...] = (),
) -> list[Op]:
    """Assert that ``function(*args)`` gives on the IPU what eager float64 gives, and the same bits on 3 threads.

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
    own_rtol, own_atol = TOLERANCES[dtype]
    rtol, atol = own_rtol if rtol is None else rtol, own_atol if atol is None else atol
    cast = pytree.tree_map_only(torch.Tensor, lambda t: _as(t, dtype), args)
    exact = pytree.tree_map_only(torch.Tensor, lambda t: _as(t, torch.float64), cast)
    expected = outcome(function, exact)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", fullgraph=True, dynamic=False)
    with recorded() as executors:
        single = outcome(compiled, cast)
        for executor in executors:
            executor.threads = 3
        several = outcome(compiled, cast)
    ops = [op for executor in executors for op in executor.graph.ops]
    if native:
        generic = sorted({op.target for op in ops if op.kind == "generic"} - set(allowed))
        assert not generic, f"generic: {generic}"
    assert len(single) == len(expected)
    for place, (mine, again, wanted) in enumerate(zip(single, several, expected, strict=True)):
        assert mine.shape == wanted.shape, f"result {place}: {tuple(mine.shape)}, not {tuple(wanted.shape)}"
        assert torch.equal(_bits(mine), _bits(again)), f"result {place} depends on the number of threads"
        torch.testing.assert_close(
            mine.to(wanted.dtype), wanted, rtol=rtol, atol=atol + rtol * _largest(wanted), equal_nan=True,
            msg=lambda text, place=place: f"result {place}: {text}",
        )
    assert_costs_sane(ops)
    return ops


def outcome(function: Callable[..., Any], args: Any) -> list[torch.Tensor]:
    """Return the tensors that a call gives, then the gradients of the sum of all floating ones, weighted."""
    args = pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), args
    )
    leaves = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    results = [r for r in pytree.tree_leaves(function(*args)) if isinstance(r, torch.Tensor)]
    differentiable = [r for r in results if r.requires_grad]
    if not differentiable:
        return results
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in differentiable]
    torch.autograd.backward(differentiable, weights)
    return [r.detach() for r in results] + [leaf.grad for leaf in leaves if leaf.grad is not None]


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


def assert_costs_sane(ops: list[Op]) -> None:
    """Assert that every op with elements costs cycles, and on more tiles no more than on fewer."""
    for op in ops:
        record = spec_of(op)
        if record is None or record.is_view:
            continue
        totals = []
        for tiles in TILES:
            target = dataclasses.replace(lookup_target("mk2"), num_tiles=tiles)
            sets = record.lower(op, target)
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


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().contiguous()
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def _largest(tensor: torch.Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[torch.isfinite(tensor)]
    return float(finite.abs().max()) if finite.numel() else 0.0
