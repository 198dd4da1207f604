"""What a chain may hand on without rounding: values that a half holds, by the format of halves."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu.ir.types import DType
from torchipu.optable.chain import Chain
from torchipu.optable.emission import emit_results
from torchipu.optable.half_values import KEEPING, OF_BOOLS, is_half_valued
from torchipu.optable.host_tensor import HostTensor

TENTH = 0.1  # no half
CHOSEN = [("f_clamp", 0, 2), ("f_clamp", 1, 2), ("f_clamp_min", 0, 1), ("f_clamp_max", 0, 1), ("f_threshold", 1, 2),
          ("f_nan_to_num", 0, 3), ("f_nan_to_num", 1, 3), ("f_nan_to_num", 2, 3)]


@pytest.mark.parametrize(("operation", "place", "count"), CHOSEN)
def test_a_scalar_that_may_become_the_result_is_to_be_a_half(operation: str, place: int, count: int) -> None:
    scalars = [0.5] * count
    assert is_half_valued(operation, scalars, [True])
    scalars[place] = TENTH
    assert not is_half_valued(operation, scalars, [True])


def test_a_scalar_that_decides_alone_may_be_any() -> None:
    assert is_half_valued("f_threshold", [TENTH, 0.5], [True])


@pytest.mark.parametrize("operands", [[False, True], [True, False]])
def test_every_operand_is_to_be_a_half(operands: list[bool]) -> None:
    assert is_half_valued("f_max", [], [True, True])
    assert not is_half_valued("f_max", [], operands)


@pytest.mark.parametrize(("number", "is_one"), [(65504.0, True), (65505.0, False), (1e6, False), (float("inf"), True),
                                                (float("nan"), True), (2.0**-24, True), (2.0**-25, False)])
def test_constants_are_halves_where_these_hold_them(number: float, is_one: bool) -> None:
    assert is_half_valued("", [], [], constant=number) is is_one


@pytest.mark.parametrize("operation", sorted({*KEEPING, *OF_BOOLS, "f_round_half"}))
def test_what_an_instruction_makes_of_halves_is_a_half(operation: str) -> None:
    """All halves, each beside others drawn for it."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.half).float()
    generator, plan = torch.Generator().manual_seed(0), MiniPlanner()
    others = [every[torch.randperm(len(every), generator=generator)] for _ in range(2)]
    chain = Chain(plan, every.shape)
    a, b, c = (chain.load(plan.hold(values)) for values in (every, *others))
    bits = chain.load(plan.hold(others[0] > 0))
    inputs = (bits, a, b) if operation == "f_where" else (bits,) if operation in OF_BOOLS else (a, b, c)
    assert is_half_valued(operation, (-0.5, 2.0, 1.5), [True] * 3)
    made = chain.run(operation, *inputs, scalars=(-0.5, 2.0, 1.5))
    out = plan.scratch(every.shape)
    emit_results(chain, [(made, out)])
    found = plan.fetch(out)
    assert torch.equal(found.half().float().nan_to_num(7, 8, 9), found.nan_to_num(7, 8, 9))


def test_sums_and_products_of_halves_are_none() -> None:
    for operation in ("f_add", "f_sub", "f_mul", "f_div", "f_exp", "f_sqrt"):
        assert not is_half_valued(operation, [], [True, True])


@pytest.mark.parametrize(("dtype", "is_one"), [
    (DType.HALF, True), (DType.BOOL, True), (DType.FLOAT, False), (DType.INT, False), (DType.LONG, False),
    (DType.SHORT, False),
])
def test_what_is_read_is_a_half_where_memory_holds_no_more(dtype: DType, is_one: bool) -> None:
    assert is_half_valued("", [], [], memory=HostTensor(0, 0, (3,), (1,), dtype)) is is_one


@pytest.mark.parametrize("operation", ["f_round_by", "f_round_half"])
def test_what_has_been_rounded_is_a_half(operation: str) -> None:
    assert is_half_valued(operation, [0.0], [False])
