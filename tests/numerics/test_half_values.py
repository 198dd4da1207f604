"""What a chain may hand on without rounding: values that a half holds, by the format of halves."""

from __future__ import annotations

import pytest

from torchipu.optable.half_values import is_half_valued

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
