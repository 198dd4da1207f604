"""Chains of integers of 8, 16 and 32 bits against eager: every value of a byte, wrap-around, layouts and casts."""

from __future__ import annotations

import random

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner, Ref, run_chain, run_op
from torchipu.ir.types import DType
from torchipu.optable.chain import WRAPS, Chain
from torchipu.optable.narrowing import narrowed

NARROW = [torch.int8, torch.uint8, torch.int16, torch.int32]
TYPES = [*NARROW, torch.int64]
BINARY = [
    "add.Tensor", "sub.Tensor", "mul.Tensor", "maximum.default", "minimum.default", "bitwise_and.Tensor",
    "bitwise_or.Tensor", "bitwise_xor.Tensor", "eq.Tensor", "ne.Tensor", "lt.Tensor", "le.Tensor", "gt.Tensor",
    "ge.Tensor",
]
UNARY = ["neg.default", "abs.default", "bitwise_not.default", "relu.default", "sign.default", "logical_not.default"]
OURS = {
    torch.int8: DType.CHAR, torch.uint8: DType.UNSIGNED_CHAR, torch.int16: DType.SHORT, torch.int32: DType.INT,
}


def all_or_extremes(dtype: torch.dtype) -> torch.Tensor:
    """Return all values of a type of 8 bits; of others those at its ends, around powers of two, and some between."""
    limits = torch.iinfo(dtype)
    if limits.bits == 8:
        return torch.arange(limits.min, limits.max + 1).to(dtype)
    powers = [sign * (1 << bit) + near for bit in range(limits.bits - 1) for sign in (1, -1) for near in (-1, 0, 1)]
    return torch.tensor([*powers, limits.min, limits.min + 1, limits.max, limits.max - 1, 12345, -9876]).to(dtype)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_pair_of_values_is_as_in_eager(name: str, dtype: torch.dtype) -> None:
    values = all_or_extremes(dtype)
    a, b = (x.contiguous() for x in torch.broadcast_tensors(values[:, None], values))
    (ours,), (eager,) = run_op(f"aten.{name}", a, b)
    assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op(f"aten.{name}", values[:, None], values)
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_value_is_as_in_eager(name: str, dtype: torch.dtype) -> None:
    (ours,), (eager,) = run_op(f"aten.{name}", all_or_extremes(dtype))
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("name", ["__lshift__", "__rshift__"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_shift_is_as_in_eager(name: str, dtype: torch.dtype) -> None:
    values = all_or_extremes(dtype)
    bits = torch.arange(torch.iinfo(dtype).bits).to(dtype)
    for a, b in ((values[:, None], bits), (values, bits[3]), (values[:70, None].expand(-1, 90).contiguous(), bits[:1])):
        (ours,), (eager,) = run_op(f"aten.{name}.Tensor", a, b)
        assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op(f"aten.{name}.Scalar", values, 5)
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_numbers_wrap_and_compare_as_in_eager(dtype: torch.dtype) -> None:
    values = all_or_extremes(dtype)
    for name, args in (
        ("add.Tensor", (100,)), ("sub.Tensor", (77,)), ("mul.Tensor", (3,)), ("clamp.default", (3, 90)),
        ("bitwise_and.Scalar", (12,)), ("gt.Scalar", (5,)), ("eq.Scalar", (7,)), ("le.Scalar", (0,)),
    ):
        (ours,), (eager,) = run_op(f"aten.{name}", values, *args)
        assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op("aten.add.Tensor", values, values.flip(0), alpha=5)
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("dtype", [*TYPES, torch.bool], ids=str)
@pytest.mark.parametrize("length", [1, 5, 8, 31, 32, 33, 63, 64, 65, 1023, 1025, 4099])
def test_a_choice_takes_what_the_condition_says(dtype: torch.dtype, length: int) -> None:
    torch.manual_seed(length)
    a, b = torch.randint(-99, 99, (2, length)).to(dtype)
    taken = torch.rand(length) > 0.5
    for x, y in ((a, b), (a[:1], b), (a, b[0]), (a[:1], b[:1])):
        (ours,), (eager,) = run_op("aten.where.self", taken, x, y)
        assert torch.equal(ours, eager)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "row", "column", "channel", "scalar"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_are_read_where_they_lie(layout: str, dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    limits = torch.iinfo(dtype)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randint(limits.min, limits.max + 1, shape, dtype=torch.int64).to(dtype)

    a = drawn(6, 37, 9)
    b = {
        "transposed": drawn(9, 37, 6).permute(2, 1, 0), "sliced": drawn(6, 74, 18)[:, ::2, 9:],
        "expanded": drawn(6, 1, 9).expand(6, 37, 9), "row": drawn(9), "column": drawn(6, 1, 1),
        "channel": drawn(37, 1), "scalar": drawn(1)[0],
    }[layout]
    for x, y in ((a, b), (b, a), (b, b)):
        planner = MiniPlanner()
        (ours,), (eager,) = run_op("aten.mul.Tensor", x, y, planner=planner)
        assert torch.equal(ours, eager)
        assert planner.num_steps == 1


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_floats_become_integers_by_way_of_64_bits(dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-3e9, 3e9, 2001), torch.randn(500) * 300, torch.tensor([9e18, -9e18, 0.9, -0.9])])
    (ours,), _ = run_op("aten._to_copy.default", x, dtype=dtype)
    assert torch.equal(ours, x.long().to(dtype))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_integers_become_floats_and_bools(dtype: torch.dtype) -> None:
    values = all_or_extremes(dtype)
    for to in (torch.float32, torch.bool):
        (ours,), (eager,) = run_op("aten._to_copy.default", values, dtype=to)
        assert torch.equal(ours, eager)
    (ours,), (eager,) = run_op("aten._to_copy.default", values % 2 == 0, dtype=dtype)
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_random_chains_of_integers_equal_their_ops_for_any_number_of_threads(dtype: torch.dtype, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    limits = torch.iinfo(dtype)
    shape = rng.choice([(3000,), (41, 67), (5, 7, 111)])
    values: list[object] = [
        torch.randint(max(limits.min, -(2**60)), min(limits.max, 2**60), size, dtype=dtype)
        for size in (shape, shape[-1:], (*shape[:-1], 1))
    ]
    calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = [("aten.add.Tensor", (values[0], values[1]), {})]
    whole: list[object] = [*values, Ref(0)]
    for _ in range(rng.randint(4, 14)):
        name = rng.choice([*BINARY[:8], "neg.default", "bitwise_not.default", "abs.default", "where", "number"])
        if name == "where":
            calls.append(("aten.lt.Tensor", (rng.choice(whole), whole[-1]), {}))
            calls.append(("aten.where.self", (Ref(len(calls) - 1), whole[-1], rng.choice(whole)), {}))
        elif name == "number":
            calls.append(("aten.mul.Tensor", (whole[-1], rng.randint(2, 100)), {}))
        elif name.endswith(".default") and name.split(".")[0] in ("neg", "bitwise_not", "abs"):
            calls.append((f"aten.{name}", (whole[-1],), {}))
        else:
            calls.append((f"aten.{name}", (whole[-1], rng.choice(whole)), {}))
        whole.append(Ref(len(calls) - 1))
    if rng.random() < 0.5:
        calls.append(("aten._to_copy.default", (whole[-1],), {"dtype": rng.choice([torch.float32, torch.bool])}))
    keep = [len(calls) - 1, len(calls) // 2]
    for threads in (1, 3):
        ours, eager, planner = run_chain(calls, keep, threads)
        assert all(torch.equal(x, y) for x, y in zip(ours, eager, strict=True))
        assert planner.num_steps == 1


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_value_beyond_the_type_keeps_a_chain_at_64_bits(dtype: torch.dtype) -> None:
    """A comparison of a sum that nothing has wrapped yet needs more bits than the sum of the same type."""
    plan = MiniPlanner()
    chain = Chain(plan, (100,))
    values = torch.arange(100).to(dtype)
    a, b = chain.load(plan.hold(values)), chain.load(plan.hold(values))
    total = chain.run("l_add", a, b)
    stored = plan.hold(torch.empty(100, dtype=dtype))
    assert narrowed(chain.nodes, [(total, stored)]) is not None
    assert narrowed(chain.nodes, [(chain.run("l_max", total, a), stored)]) is None
    wrapped = chain.run(WRAPS[OURS[dtype]], total)
    assert narrowed(chain.nodes, [(chain.run("l_max", wrapped, a), stored)]) is not None
    assert narrowed(chain.nodes, [(total, plan.hold(torch.empty(100, dtype=torch.int64)))]) is None
