"""The table of kernels: what it refuses, and that it and the compiled functions say the same."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu._kernels import abi
from torchipu._kernels.abi import Plan, call_kernel, check_table, run_kernel
from torchipu._kernels.table import all_kernels, families, kernels_of
from torchipu._kernels.table.kernel import AnyKernel, Kernel, Nothing, fields
from torchipu._kernels.table.matmul import MATMUL_PACK, MatmulPackInts

KERNELS = Path(abi.__file__).parent
GIVEN = {"inner": 3, "columns": 32, "batch_stride": 0, "row_stride": 32, "column_stride": 1, "block": 256}


class TiledInts(NamedTuple):
    """Integers of a kernel of the tests."""

    rows: int
    tile: tuple[int, int]
    shape: tuple[int, ...]


class FlatInts(NamedTuple):
    """Integers within others."""

    rows: int
    tile: tuple[int, int]


class OuterInts(NamedTuple):
    """Integers that hold others."""

    tiled: FlatInts
    flag: bool


TILED = Kernel("tiled", {"out": "", "left": "", "right?": ""}, TiledInts, Nothing)


def call_every_way(ints: Sequence[Any], scalars: Sequence[Any] = ()) -> list[str]:
    """Return with which words each entry to the engine refuses numbers for a packing."""
    right, packed = torch.randn(3, 32), torch.zeros(3, 32)
    addresses, planner, plan = [packed.data_ptr(), right.data_ptr()], MiniPlanner(), Plan(2)
    held = [planner.hold(packed)], [planner.hold(right)]
    words = []
    for call in (
        lambda: run_kernel(MATMUL_PACK, addresses, ints, scalars),
        lambda: call_kernel(MATMUL_PACK, addresses, ints, scalars),
        lambda: plan.add_step(MATMUL_PACK, [0, 1], [0, 0], ints, scalars, 1, 1, 0),
        lambda: planner.step(MATMUL_PACK, *held, ints=ints, scalars=scalars),
    ):
        with pytest.raises(TypeError) as refusal:
            call()
        words.append(str(refusal.value))
    assert plan.num_steps == 0
    assert bool((packed == 0).all())
    return words


def test_named_integers_reach_the_kernel() -> None:
    right, packed = torch.randn(3, 32), torch.zeros(3, 32)
    run_kernel(MATMUL_PACK, [packed.data_ptr(), right.data_ptr()], MatmulPackInts(**GIVEN))
    assert torch.equal(packed, right)


def test_integers_without_names_are_refused() -> None:
    for words in call_every_way(tuple(GIVEN.values())):
        assert words == (
            "matmul_pack takes its ints as "
            "MatmulPackInts(inner, columns, batch_stride, row_stride, column_stride, block), "
            "and was given tuple (3, 32, 0, 32, 1, 256)"
        )


def test_integers_of_another_kernel_are_refused() -> None:
    for words in call_every_way(TiledInts(1, (2, 3), ())):
        assert words.endswith("and was given TiledInts (1, (2, 3), ())")


def test_scalars_of_a_kernel_without_any_are_refused() -> None:
    for words in call_every_way(MatmulPackInts(**GIVEN), (1.0,)):
        assert words == "matmul_pack takes its scalars as Nothing(), and was given tuple (1.0,)"


@pytest.mark.parametrize("given", [{**GIVEN, "rows": 1}, {name: GIVEN[name] for name in list(GIVEN)[:-1]}])
def test_a_wrong_name_or_a_missing_one_is_refused_by_the_class(given: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"rows|block"):
        MatmulPackInts(**given)


@pytest.mark.parametrize("count", [1, 4])
def test_too_few_or_too_many_operands_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"tiled takes the operands out, left, right\\?, and was given {count}"):
        TILED.check(count, TiledInts(1, (2, 3), ()), ())


def test_any_number_of_operands_is_taken_where_the_table_says_so() -> None:
    kernel = Kernel("many", {"out": "", "values*": ""}, Nothing, Nothing)
    for count in (1, 2, 30):
        kernel.check(count, (), ())
    with pytest.raises(ValueError, match="many takes the operands out, values"):
        kernel.check(0, (), ())


def test_tuples_lie_one_behind_the_other_and_keep_their_length() -> None:
    assert TILED.flat_ints(TiledInts(1, (2, 3), (4, 5, 6))) == (1, 2, 3, 4, 5, 6)
    assert TILED.layout == ("rows tile[2] shape[]", "")
    with pytest.raises(ValueError, match=r"tiled: tile has 2 numbers, and was given \(2, 3, 4\)"):
        TILED.flat_ints(TiledInts(1, (2, 3, 4), ()))  # type: ignore[arg-type]


def test_a_class_of_numbers_may_hold_another() -> None:
    kernel = Kernel("outer", {"out": ""}, OuterInts, Nothing)
    assert kernel.flat_ints(OuterInts(FlatInts(1, (2, 3)), True)) == (1, 2, 3, True)
    assert kernel.layout == ("tiled(rows tile[2]) flag", "")
    with pytest.raises(TypeError, match=r"outer takes its tiled as FlatInts\(rows, tile\[2\]\), and was given tuple"):
        kernel.flat_ints(OuterInts((1, (2, 3)), True))  # type: ignore[arg-type]


def test_a_kernel_without_a_function_is_refused_at_import() -> None:
    with pytest.raises(ImportError, match="the kernel 'tiled' of the table has no C function"):
        check_table([TILED])


def test_a_kernel_that_was_built_for_other_numbers_is_refused_at_import() -> None:
    changed: AnyKernel = Kernel(MATMUL_PACK.name, MATMUL_PACK.args, TiledInts, Nothing)
    with pytest.raises(ImportError, match=r"'matmul_pack' takes \('rows tile\[2\] shape\[\]', ''\), and was built for"):
        check_table([changed])


def test_a_kernel_that_the_engine_does_not_know_is_refused() -> None:
    plan = Plan(2)
    with pytest.raises(ValueError, match="there is no kernel 'tiled'"):
        plan.add_step(TILED, [0, 1], [0, 0], TiledInts(1, (2, 3), ()), (), 1, 1, 0)
    assert plan.num_steps == 0


def test_every_function_of_a_body_is_in_the_table() -> None:
    for name, family in families().items():
        records = {kernel.name for kernel in kernels_of(family)}
        if records:
            body = (KERNELS / f"{name}_body.h").read_text(encoding="utf-8")
            assert {*re.findall(r"^TI_KERNEL\((\w+)\)", body, re.MULTILINE)} - records == set(), name


@pytest.mark.parametrize("kernel", all_kernels(), ids=lambda kernel: kernel.name)
def test_every_number_of_a_kernel_is_documented(kernel: AnyKernel) -> None:
    for kind in (kernel.ints, kernel.scalars):
        for field in fields(kind):
            told = inspect.getdoc(kind) or ""  # Python 3.13 strips what the lines are indented by, earlier ones do not
            assert re.search(rf"^ {{4}}{field.name}: \S", told, re.MULTILINE), (kind, field.name)
