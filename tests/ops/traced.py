"""Runs a function of tensors through the backend without Dynamo, and judges it by eager: values, gradients, costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import torchipu.backend as door
from torchipu.ir.graph import Op
from torchipu.ops.generic import lower_generic
from torchipu.ops.spec import spec_of
from torchipu.runtime.executor import GraphExecutor
from torchipu.target import lookup_target

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3}
TILES = (1, 3, 1472)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> tuple[torch.Tensor, ...]:
        return _flat(self.function(*args))


def check(
    function: Callable[..., Any],
    *args: torch.Tensor,
    tolerance: float | None = None,
    allowed: tuple[str, ...] = (),
    skip: tuple[int, ...] = (),
) -> list[Op]:
    """Assert that a function gives on the IPU the dtypes of eager, the values and gradients of eager float64, and the
    same bits on one and on three threads.

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
    with _executors() as executors:
        compiled = door.ipu_backend(_Function(function), [_leaf(arg) for arg in args], options={"host_threads": 1})
        mine = _outcome(compiled, args)
        for executor in executors:
            executor.threads = 3
        again = _outcome(compiled, args)
    eager = _flat(function(*(arg.detach() for arg in args)))
    exact = _outcome(
        function,
        [arg.detach().double().requires_grad_(arg.requires_grad) if arg.is_floating_point() else arg for arg in args],
    )
    assert len(mine) == len(exact)
    for place, (ours, others, wanted) in enumerate(zip(mine, again, exact, strict=True)):
        assert torch.equal(_bits(ours), _bits(others)), f"result {place} depends on the number of threads"
        if place < len(eager):
            assert ours.dtype == eager[place].dtype, f"result {place}: {ours.dtype}, not {eager[place].dtype}"
        assert ours.shape == wanted.shape
        if place in skip:
            continue
        bound = tolerance if place < len(eager) else 5 * tolerance  # gradients pass through two kernels and more
        torch.testing.assert_close(
            ours.to(wanted.dtype),
            wanted,
            rtol=bound,
            atol=bound,
            equal_nan=True,
            msg=lambda text, place=place: f"result {place}: {text}",
        )
    ops = [op for executor in executors for op in executor.graph.ops]
    generic = {op.target for op in ops if spec_of(op) is None} - set(allowed)
    assert not generic, f"generic: {sorted(generic)}"
    check_costs(ops)
    return ops


def run(function: Callable[..., Any], *args: torch.Tensor, threads: int = 1) -> tuple[torch.Tensor, ...]:
    """Run a function through the backend on the host threads given."""
    options = {"host_threads": threads}
    return tuple(door.ipu_backend(_Function(function), [_leaf(arg) for arg in args], options=options)(*args))


def _outcome(function: Callable[..., Any], args: Any) -> list[torch.Tensor]:
    """Return results, then the gradients of their weighted sum."""
    leaves = [_leaf(arg) for arg in args]
    results = list(_flat(function(*leaves)))
    carrying = [result for result in results if result.requires_grad]
    if carrying:
        generator = torch.Generator().manual_seed(7)
        weights = [torch.randn(r.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r in carrying]
        torch.autograd.backward(carrying, weights)
    return [r.detach() for r in results] + [leaf.grad for leaf in leaves if leaf.grad is not None]


@contextmanager
def _executors() -> Iterator[list[GraphExecutor]]:
    made: list[GraphExecutor] = []

    class Noted(GraphExecutor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    kept, door.GraphExecutor = door.GraphExecutor, Noted
    try:
        yield made
    finally:
        door.GraphExecutor = kept


def check_costs(ops: list[Op]) -> None:
    """Assert that every op with elements costs cycles on 1, 3 and 1472 tiles, and that tiles help."""
    for op in ops:
        record = spec_of(op)
        if record is not None and record.is_view:
            continue
        lower = lower_generic if record is None else record.lower
        totals = []
        for tiles in TILES:
            target = dataclasses.replace(lookup_target("mk2"), num_tiles=tiles)
            total = 0
            for vertices in lower(op, target):
                grains = -(-vertices.elements // vertices.grain)
                used = max(1, min(tiles, vertices.max_tiles or tiles))
                mine = min(vertices.elements, -(-grains // used) * vertices.grain)
                cycles = vertices.codelet.cycles(target, vertices.work(mine))
                assert cycles > 0, f"{op.target}: {vertices.codelet.name} costs {cycles} cycles"
                assert vertices.gathered_bytes >= 0
                total += cycles
            totals.append(total)
        # A reduction spread over tiles has further levels, which tiny ops do not pay back.
        assert totals[2] <= totals[0] + 20_000, f"{op.target}: {totals} cycles on {TILES} tiles"


def _flat(results: Any) -> tuple[torch.Tensor, ...]:
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def _leaf(arg: torch.Tensor) -> torch.Tensor:
    """Return a leaf with the same layout in memory of its own; expanded operands stay expanded."""
    base = arg.detach()
    held = base if any(stride == 0 for stride in base.stride()) else base.clone(memory_format=torch.preserve_format)
    return held.requires_grad_(arg.requires_grad)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
