"""Every elementwise record against eager PyTorch: values, types, layouts, extremes, threads, and sane cycles."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from tests.kernels.elem_planner import DTYPES as HELD
from tests.kernels.elem_planner import bind_call, make_op, run_op
from tests.ops.elementwise_cases import DTYPES, TARGETS, accepted, calls, in_double, overload_of
from torchipu.device.codelets import busiest_elements
from torchipu.ir.graph import Op, Tensor
from torchipu.optable.spec import lookup
from torchipu.target import lookup_target

pytestmark = pytest.mark.whole  # each record has a lowering and kernels of its own
FLOAT_TARGETS = [target for target in TARGETS if accepted(target, torch.float32)]
# Eager's own airy_ai is that far off in float64; scipy's agrees with ours to a float's last places.
LOOSE = {"special_airy_ai": 3e-5}
UNDEFINED_AT_EXTREMES = frozenset([
    "_to_copy",  # C leaves open what whole number becomes of an infinity
    "masked_fill",  # takes one value
    "polygamma",  # eager's sine of a multiple of pi is not zero, so that its poles are finite
    *(target.split(".")[1] for target in TARGETS if "polynomial" in target),  # eager returns what it never set
])
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3}


def name_of(target: str) -> str:
    return target.split(".")[1]


def assert_close(ours: torch.Tensor, eager: torch.Tensor, rtol: float, atol: float) -> None:
    assert ours.shape == eager.shape
    torch.testing.assert_close(ours, eager.to(ours.dtype), rtol=rtol, atol=atol, equal_nan=True)


def apart(value: object) -> object:
    """Return a tensor whose elements have gaps between them: eager then computes them one by one.

    By vectors of some processors, it gives other results for NaN than for single elements.
    """
    return torch.stack([value, value], -1)[..., 0] if isinstance(value, torch.Tensor) else value


def exact_results(args: list[object], kwargs: dict[str, object], target: str) -> tuple[torch.Tensor, ...]:
    """Return eager's results with floats in float64."""
    wide_args, wide_kwargs = in_double((args, kwargs))
    exact = overload_of(target)(*wide_args, **wide_kwargs)
    return tuple(exact) if isinstance(exact, (tuple, list)) else (exact,)


@pytest.mark.parametrize("target", FLOAT_TARGETS)
def test_values_equal_eager_in_float64(target: str) -> None:
    torch.manual_seed(1)
    tolerance = LOOSE.get(name_of(target), 3e-6)
    for (args, kwargs), _ in accepted(target, torch.float32):
        ours, _ = run_op(target, *args, **kwargs)
        for mine, exact in zip(ours, exact_results(args, kwargs, target), strict=True):
            assert_close(mine, exact, tolerance, tolerance)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype is not torch.float32], ids=str)
def test_every_type_that_eager_takes_gives_eager_s_result(dtype: torch.dtype) -> None:
    """Halves are judged by float64, rounded; integers and bools by eager in their own type."""
    for target in TARGETS:
        torch.manual_seed(2)
        for (args, kwargs), eager in accepted(target, dtype):
            ours, _ = run_op(target, *args, **kwargs)
            right = exact_results(args, kwargs, target) if dtype.is_floating_point else eager
            for mine, theirs, typed in zip(ours, right, eager, strict=True):
                tolerance = TOLERANCE.get(typed.dtype, 0.0)
                assert_close(mine, theirs.to(typed.dtype), tolerance, tolerance)


MIXED = ["add.Tensor", "mul.Tensor", "div.Tensor", "eq.Tensor", "lt.Tensor", "where.self", "maximum.default",
         "fmod.Tensor", "pow.Tensor_Tensor", "copysign.Tensor", "xlogy.Tensor", "clamp.Tensor", "bitwise_xor.Tensor"]


@pytest.mark.parametrize("name", MIXED)
def test_mixed_types_promote_as_eager(name: str) -> None:
    """All pairs of types, beside tensors and beside 0-d tensors."""
    torch.manual_seed(3)
    for left, right, shape in itertools.product(DTYPES, DTYPES, ((40,), ())):
        a, b = (torch.rand(40) * 9 + 1).to(left), (torch.rand(shape) * 4 + 1).to(right)
        args = (a > 3, a, b) if name == "where.self" else (a, b)
        try:
            eager = overload_of(f"aten.{name}")(*args)
        except (RuntimeError, NotImplementedError):
            continue
        (ours,), _ = run_op(f"aten.{name}", *args)
        right = eager
        if eager.dtype.is_floating_point:  # of operands that were promoted
            promoted = [value if value.dtype is torch.bool and name == "where.self" and place == 0
                        else value.to(eager.dtype).double() for place, value in enumerate(args)]
            right = overload_of(f"aten.{name}")(*promoted).to(eager.dtype)
        tolerance = TOLERANCE.get(eager.dtype, 0.0)
        assert_close(ours, right, tolerance, tolerance)


@pytest.mark.parametrize(("left", "right"), [(2049, 2048.0), (4097, 4096.0)])
def test_integers_beside_halves_become_halves_first(left: int, right: float) -> None:
    a, b = torch.tensor([left]), torch.tensor([right]).half()
    for name in ("eq", "add", "sub", "maximum"):
        (ours,), (eager,) = run_op(f"aten.{name}.{'default' if name == 'maximum' else 'Tensor'}", a, b)
        assert torch.equal(ours, eager), name


@pytest.mark.parametrize("name", ["add", "remainder", "bitwise_and", "lt", "eq"])
def test_whole_numbers_wrap_beside_narrow_integers(name: str) -> None:
    a = torch.tensor([0, 1, 5, 254, 255], dtype=torch.uint8)
    (ours,), (eager,) = run_op(f"aten.{name}.Scalar", a, -2)
    assert torch.equal(ours, eager)


NARROW = (torch.uint8, torch.int8, torch.int16, torch.int32)
OF_INTEGERS = (
    "floor_divide.default", "remainder.Tensor", "fmod.Tensor", "gt.Tensor", "eq.Tensor", "maximum.default",
    "minimum.default", "bitwise_right_shift.Tensor", "gcd.default", "clamp.Tensor", "div.Tensor_mode", "add.Tensor",
)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", OF_INTEGERS)
def test_0_d_integers_wrap_beside_narrower_ones(name: str, dtype: torch.dtype) -> None:
    """In torch an integer without dimensions takes the type of those that have some, on either side."""
    narrow = torch.tensor([1, 2, 3, 5, 7], dtype=dtype)
    keywords = {"rounding_mode": "trunc"} if name == "div.Tensor_mode" else {}
    for number in (300, -3, 2**31 + 5, 5 - 2**63):
        for args in ((torch.tensor(number), narrow), (narrow, torch.tensor(number))):
            shifts = "shift" in name and args[0] is narrow and not 0 <= int(args[1].to(dtype)) < 8
            if not shifts:  # by more bits than there are: undefined
                (ours,), (eager,) = run_op(f"aten.{name}", *args, **keywords)
                assert torch.equal(ours, eager), (number, args[0] is narrow)


LAYOUTS = {
    "0-d": (((),), lambda value: value),
    "empty": (((3, 0), (0,)), lambda value: value),
    "one": (((1,),), lambda value: value),
    "odd": (((7, 131),), lambda value: value),
    "transposed": (((5, 6, 7),), lambda value: value.permute(2, 0, 1).contiguous().permute(1, 2, 0)),
    "sliced": (((5, 9),), lambda value: torch.stack([value, value], -1)[..., 1] if value.dim() else value),
    "expanded": (((5, 9), (1, 9), (5, 1)), lambda value: value[..., :1].expand(value.shape) if value.dim() else value),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_gives_eager_s_result(layout: str) -> None:
    shapes, arrange = LAYOUTS[layout]
    for target in FLOAT_TARGETS:
        if name_of(target).startswith("glu"):
            continue  # needs a dimension of even size; below
        torch.manual_seed(4)
        args, kwargs = calls(target, shapes=shapes, layout=arrange)[0]
        ours, _ = run_op(target, *args, **kwargs)
        tolerance = LOOSE.get(name_of(target), 1e-5)
        for mine, exact in zip(ours, exact_results(args, kwargs, target), strict=True):
            assert_close(mine, exact, tolerance, tolerance)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("shape", [(2, 4, 6), (4, 10, 34), (4, 0, 2)])
def test_glu_and_its_gradient_halve_any_dimension_of_any_layout(shape: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(6)
    value = torch.randn(shape[::-1]).permute(2, 1, 0)
    (ours,), _ = run_op("aten.glu.default", value, dim)
    exact = torch.nn.functional.glu(value.double(), dim)
    assert_close(ours, exact, 3e-6, 3e-6)
    gradient = torch.randn(exact.shape[::-1]).permute(2, 1, 0)
    (ours,), _ = run_op("aten.glu_backward.default", gradient, value, dim)
    assert_close(ours, torch.ops.aten.glu_backward(gradient.double(), value.double(), dim), 3e-6, 3e-6)


EXTREMES = torch.tensor([
    0.0, -0.0, math.inf, -math.inf, math.nan, 1e-30, -1e-30, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 6.0, -6.0, 7.5,
    -7.5, 20.0, -20.0, 80.0, -80.0, 104.0, -104.0, 1e4, -1e4, 3e38, -3e38,
])


def at_extremes(args: list[object]) -> list[object]:
    """Return a call whose first three floating operands run through all pairs or triples of extremes."""
    tensors = {place: value for place, value in enumerate(args) if isinstance(value, torch.Tensor)}
    places = [place for place, value in tensors.items() if value.is_floating_point()]
    dims = min(3, len(places))
    size = len(EXTREMES)
    replaced = list(args)
    for number, place in enumerate(places):
        shape = [1] * dims
        shape[min(number, dims - 1)] = size
        replaced[place] = EXTREMES.reshape(shape).expand([size] * dims)
    for place, value in tensors.items():
        if value.dtype is torch.bool:
            replaced[place] = torch.arange(size**dims).reshape([size] * dims) % 2 == 0
    return replaced


@pytest.mark.parametrize("target", [t for t in FLOAT_TARGETS if name_of(t) not in UNDEFINED_AT_EXTREMES])
def test_extremes_give_what_eager_gives_in_float32_or_in_float64(target: str) -> None:
    for (args, kwargs), _ in accepted(target, torch.float32):
        replaced = at_extremes(args)
        if name_of(target).startswith("glu"):
            halves = [EXTREMES.reshape(-1, 1).expand(29, 29), EXTREMES.expand(29, 29)]
            replaced = [*([EXTREMES.flip(0).expand(29, 29)] if len(args) == 3 else []), torch.cat(halves, -1), -1]
        if name_of(target) == "log_sigmoid_backward":
            replaced[2] = torch.exp(-replaced[1].abs())
        ours, eager = run_op(target, *replaced, **kwargs)
        single_apart = overload_of(target)(*map(apart, replaced), **kwargs)
        single_apart = single_apart if isinstance(single_apart, (tuple, list)) else (single_apart,)
        doubles = exact_results(replaced, kwargs, target)
        for mine, single, double, one_by_one in zip(ours, eager, doubles, single_apart, strict=True):
            fits = [torch.isclose(mine.double(), right.to(mine.dtype).double(), rtol=1e-5, atol=1e-6, equal_nan=True)
                    for right in (single, double, one_by_one)]
            wrong = ~(fits[0] | fits[1] | fits[2])
            assert not wrong.any(), _first(wrong, replaced, mine, single, double)


def _first(wrong: torch.Tensor, args: list[object], *results: torch.Tensor) -> str:
    place = tuple(wrong.nonzero()[0].tolist())
    given = [value.expand(wrong.shape)[place].item() if isinstance(value, torch.Tensor) and value.dim() and
             value.shape == wrong.shape else value if not isinstance(value, torch.Tensor) else "..." for value in args]
    return f"{int(wrong.sum())} wrong, first {given}: ours, float32, float64 = {[r[place].item() for r in results]}"


@pytest.mark.parametrize("target", [target for target in FLOAT_TARGETS if not target.startswith("aten.glu")])
def test_three_threads_give_the_bits_of_one(target: str) -> None:
    torch.manual_seed(5)
    args, kwargs = calls(target, shapes=((9, 641), (641,), (9, 1)))[0]
    by_threads = [run_op(target, *args, threads=threads, **kwargs)[0] for threads in (1, 3)]
    for one, three in zip(*by_threads, strict=True):
        if one.dtype.is_floating_point:
            one, three = one.view(torch.int32), three.view(torch.int32)
        assert torch.equal(one, three)


@pytest.mark.parametrize("target", TARGETS)
def test_cycles_grow_with_the_work_and_shrink_with_the_tiles(target: str) -> None:
    spec, op = lookup(target), small_op(target)
    assert spec is not None
    machine = lookup_target("mk2")
    found: dict[tuple[int, int], int] = {}
    for tiles, rows in itertools.product((1, 3, 1472), (4, 4000)):
        fewer = dataclasses.replace(machine, num_tiles=tiles)
        sets = spec.lower(with_rows(op, rows), fewer)
        assert sets
        found[tiles, rows] = sum(
            vertices.codelet.cycles(fewer, vertices.work(busiest_elements(fewer, vertices.elements, vertices.grain)))
            for vertices in sets
        )
    elements = with_rows(op, 4000).outputs[0].num_elements
    # More than a hundredth of a cycle and less than ten thousand an element; six workers share a tile.
    assert elements / 100 < found[1, 4000] < 1e4 * elements
    assert found[1, 4] < found[1, 4000]
    assert found[1, 4000] > found[3, 4000] > found[1472, 4000] > 0


def small_op(target: str) -> Op:
    """Return the op of a call on four rows."""
    dtype = next(dtype for dtype in (torch.float32, torch.int32, torch.bool) if accepted(target, dtype))
    args, kwargs = calls(target, dtype, shapes=((4, 34), (34,), (4, 1)))[0]
    eager = overload_of(target)(*args, **kwargs)
    tensors = {
        id(value): Tensor(f"x{number}", tuple(value.shape), HELD[value.dtype])
        for number, value in enumerate(bind_call(target, args, kwargs).values()) if isinstance(value, torch.Tensor)
    }
    return make_op(target, args, kwargs, tensors, eager if isinstance(eager, (tuple, list)) else (eager,))


def with_rows(op: Op, rows: int) -> Op:
    """Return an op with so many rows in place of its first dimension where there are two."""

    def grown(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(
            dataclasses.replace(t, shape=(rows, *t.shape[1:])) if len(t.shape) == 2 else t for t in tensors
        )

    return dataclasses.replace(op, inputs=grown(op.inputs), outputs=grown(op.outputs))
