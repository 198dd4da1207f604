"""Stores of chains into memory with gaps or in another order: rounded halves, and numbers that are repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.elem_planner import MiniPlanner
from torchipu._kernels.table.elementwise import CHAIN
from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.optable import emission
from torchipu.optable.chain import Chain
from torchipu.optable.emission import emit_cast, emit_results
from torchipu.optable.host_tensor import Rounding

# What part of `[rows, columns, 2]` is written, `[rows, columns]`, and how much larger memory is.
LYING: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda memory: memory.flatten()[: memory[..., 0].numel()].view(memory[..., 0].shape),
    "every other": lambda memory: memory[..., 1],
    "transposed": lambda memory: memory.flatten()[: memory[..., 0].numel()].view(*memory[..., 0].shape[::-1]).t(),
    "columns of more": lambda memory: memory.flatten(1)[:, 3 : 3 + memory.shape[1]],
}
SIZES = [(5, 6), (3, 700), (70, 33)]


def values(rows: int, columns: int) -> Tensor:
    """Return floats that halves hold, that lie between halves, and that are too large for them."""
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 1000
    made[0, :4] = torch.tensor([7e4, -7e4, torch.inf, 65504.0])
    return made


def untouched(memory: Tensor, written: Tensor) -> bool:
    """Whether what is not part of a view still holds sevens."""
    rest = memory.clone()
    rest.as_strided(written.shape, written.stride(), written.storage_offset()).fill_(7)
    return bool((rest == 7).all())


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("lying", LYING)
def test_halves_that_saturate_are_written_where_they_lie(lying: str, sizes: tuple[int, int]) -> None:
    memory, x = torch.full((*sizes, 2), 7.0).half(), values(*sizes)
    written = LYING[lying](memory)
    plan = MiniPlanner()
    emit_cast(plan, plan.hold(written), plan.hold(x), Rounding(None, HalfOverflow.SATURATE))
    assert torch.equal(written, x.double().clamp(-65504, 65504).half())
    assert untouched(memory, written)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("lying", LYING)
def test_halves_rounded_at_random_are_beside_their_value_wherever_they_lie(
    lying: str, sizes: tuple[int, int],
) -> None:
    memory, x = torch.full((*sizes, 2), 7.0).half(), values(*sizes).clamp(-6e4, 6e4)
    written = LYING[lying](memory)
    plan = MiniPlanner()
    emit_cast(plan, plan.hold(written), plan.hold(x), Rounding(plan.hold(plan.random), HalfOverflow.INFINITY))
    exponents = torch.frexp(x.double()).exponent.clamp(min=-13)
    ulp = 2.0 ** (exponents.double() - 11)
    assert ((written.double() - x.double()).abs() < ulp).all()
    assert not torch.equal(written, x.half()), "none is rounded away from its nearest half"
    assert untouched(memory, written)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("lying", LYING)
def test_floats_are_written_where_they_lie_and_nowhere_else(lying: str, sizes: tuple[int, int]) -> None:
    memory, x = torch.full((*sizes, 2), 7.0), torch.arange(sizes[0] * sizes[1]).view(sizes) * 3 + 8
    written = LYING[lying](memory)
    plan = MiniPlanner()
    emit_cast(plan, plan.hold(written), plan.hold(x))
    assert torch.equal(written, x.float())
    assert untouched(memory, written)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.int8, torch.bool])
@pytest.mark.parametrize("source", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("lying", LYING)
def test_a_number_fills_all_of_a_part(lying: str, source: torch.dtype, dtype: torch.dtype) -> None:
    for number, sizes in enumerate(SIZES):  # others than the last, which registers may still hold
        memory = torch.full((*sizes, 2), 7).to(dtype)
        written, given = LYING[lying](memory), torch.tensor([number + 11]).to(source)
        plan = MiniPlanner()
        emit_cast(plan, plan.hold(written), plan.hold(given.expand(sizes)))
        assert torch.equal(written, given.expand(sizes).to(dtype))
        assert dtype is torch.bool or untouched(memory, written)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int16])
def test_a_number_that_fills_a_part_leaves_others_of_the_chain_alone(dtype: torch.dtype) -> None:
    """It is held as one vector beside the others: to be stored with strides it is spread over memory of its own."""
    sizes = (70, 33)
    memory, x = torch.full((*sizes, 2), 7).to(dtype), torch.arange(70 * 33).view(sizes).to(dtype)
    numbers = [torch.tensor([number]).to(dtype).expand(sizes) for number in (11, 13)]
    written, product = LYING["every other"](memory), torch.empty(sizes, dtype=dtype)
    plan = MiniPlanner()
    chain = Chain(plan, sizes)
    first, second, factor = (chain.load(plan.hold(value)) for value in (*numbers, x))
    multiplied = chain.run("f_mul" if dtype is torch.float32 else "l_mul", factor, second)
    emit_results(chain, [(first, plan.hold(written)), (multiplied, plan.hold(product))])
    assert torch.equal(written, numbers[0])
    assert torch.equal(product, x * 13)  # which wraps in int16
    assert untouched(memory, written)


def test_a_computed_value_is_stored_where_it_lies_without_a_copy() -> None:
    """Only what fills no register of its own, a number, is spread over one before it is stored."""

    class Counting(MiniPlanner):
        def step(self, kernel: Any, *args: Any, **kwargs: Any) -> None:
            if kernel is CHAIN:
                counts.append(kwargs["ints"].num_instructions)
            super().step(kernel, *args, **kwargs)

    counts = list[int]()
    x = values(5, 6)
    for lying in ("row-major", "every other"):
        plan, memory = Counting(), torch.full((5, 6, 2), 7.0)
        written = LYING[lying](memory)
        chain = Chain(plan, (5, 6))
        loaded = chain.load(plan.hold(x))
        emit_results(chain, [(chain.run("f_mul", loaded, loaded), plan.hold(written))])
        assert torch.equal(written, x * x)
        assert untouched(memory, written)
    assert counts == [1, 2], "a product that is written into its place; one, and a store"


def test_registers_begin_on_lines_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads of 64 bytes that lie across two of them take twice as long."""
    offsets = list[int]()

    plain = emission.flat

    def flat(kernel: str, record: str, kind: Any, told: Any) -> Any:
        if record == "slot":
            offsets.append(told.offset)
        return plain(kernel, record, kind, told)

    monkeypatch.setattr(emission, "flat", flat)
    x, y, plan = values(5, 6).clamp(-9, 9), values(6, 5).sin().view(5, 6).nan_to_num(), MiniPlanner()
    memory = torch.empty(5, 6)
    chain = Chain(plan, (5, 6))
    first, second = chain.load(plan.hold(x)), chain.load(plan.hold(y))
    added, taken, product = (chain.run(name, first, second) for name in ("f_add", "f_sub", "f_mul"))
    made = chain.run("f_mul", chain.run("f_mul", added, taken), product)
    emit_results(chain, [(made, plan.hold(memory))])
    assert len(set(offsets)) > 2
    assert all(offset % 64 == 0 for offset in offsets)
    assert torch.equal(memory, (x + y) * (x - y) * (x * y))
