"""Interpolation: rows in several pieces, few elements behind a dimension, layouts, and threads that share rows out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from tests.host.planned import planned_kernels
from tests.kernels.elem_planner import MiniPlanner
from torchipu import InferenceStep, Options
from torchipu._kernels.table.resample import WINDOW
from torchipu.ops import resample

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "a row in several pieces": ((1, 1, 6000), {"size": 9000, "mode": "linear"}),
    "few columns": ((2, 3, 9, 3), {"size": (5, 4), "mode": "bilinear"}),
    "borders of fewer taps": ((2, 3, 9, 11), {"scale_factor": 2, "mode": "bicubic"}),
    "rows of six taps": ((2, 3, 24, 31), {"size": (9, 10), "mode": "bilinear", "antialias": True}),
    "short rows, several as one": ((2, 6, 7, 7), {"scale_factor": 2, "mode": "bilinear"}),
    "a prime of short rows": ((1, 5, 7), {"scale_factor": 2, "mode": "linear"}),
    "rows of sixteen": ((2, 3, 6, 16), {"size": (9, 33), "mode": "bicubic"}),
    "sources too far apart": ((1, 2, 4, 200), {"size": (4, 19), "mode": "bilinear"}),
    "elements that nobody takes": ((2, 8, 40), {"size": 21, "mode": "nearest"}),
    "the same elements": ((2, 5, 9, 11), {"size": (21, 25), "mode": "nearest"}),
    "volumes": ((2, 3, 4, 5, 6), {"size": (7, 8, 9), "mode": "trilinear", "align_corners": True}),
}


def compiled(function: Callable[..., torch.Tensor], threads: int) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = torch.compile(function, backend="ipu", options={"host_threads": threads})
    return call


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_and_gradients_are_those_of_double_precision(name: str, threads: int) -> None:
    shape, how = CASES[name]
    given = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    found, expected = given.clone().requires_grad_(), given.double().requires_grad_()
    result, wanted = compiled(lambda x: interpolate(x, **how), threads)(found), interpolate(expected, **how)
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5)
    (result**2).sum().backward()
    (wanted**2).sum().backward()
    assert found.grad is not None
    torch.testing.assert_close(found.grad.double(), expected.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name, (shape, _) in CASES.items() if len(shape) == 4])
def test_images_with_their_channels_last_give_such_images_and_gradients(name: str) -> None:
    shape, how = CASES[name]
    given = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    last = given.contiguous(memory_format=torch.channels_last).requires_grad_()
    result, wanted = compiled(lambda x: interpolate(x, **how), 1)(last), interpolate(given.double(), **how)
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5)
    assert result.is_contiguous(memory_format=torch.channels_last)
    result.sum().backward()
    assert last.grad is not None
    assert last.grad.is_contiguous(memory_format=torch.channels_last)
    plain = given.double().requires_grad_()
    interpolate(plain, **how).sum().backward()
    torch.testing.assert_close(last.grad.double(), plain.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_halves_with_their_channels_last_stay_so(
    mode: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = planned_kernels(monkeypatch)
    given = torch.randn(2, 20, 7, 9, generator=torch.Generator().manual_seed(4)).to(dtype)
    last = given.contiguous(memory_format=torch.channels_last)
    for threads in (1, 2):
        result = compiled(lambda x: interpolate(x, size=(15, 11), mode=mode), threads)(last)
        wanted = interpolate(given.double(), size=(15, 11), mode=mode)
        assert result.is_contiguous(memory_format=torch.channels_last)
        assert result.dtype == dtype
        error = 0 if mode == "nearest" else 1e-3 if dtype is torch.float16 else 1e-2
        torch.testing.assert_close(result.double(), wanted, atol=error, rtol=error)
    assert "transpose" not in kernels


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 2, 1), (2, 0, 3, 1)])
@pytest.mark.parametrize("size", [(5, 1), (1, 7), (1, 1)])
def test_results_of_one_row_or_column_take_operands_in_any_order(order: tuple[int, ...], size: tuple[int, int]) -> None:
    laid_out = torch.randn(2, 3, 4, 6).permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
    for how in ({"mode": "bilinear"}, {"mode": "nearest"}):
        found = compiled(lambda x, how=how: interpolate(x, size=size, **how), 1)(laid_out)
        expected = interpolate(laid_out.double(), size=size, **how)
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_the_bits_do_not_depend_on_threads() -> None:
    given = torch.randn(3, 5, 40, 53, generator=torch.Generator().manual_seed(5))

    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return interpolate(x, size=(91, 120), mode="bicubic")

    one, two = (compiled(enlarged, threads)(given) for threads in (1, 2))
    assert one.equal(two)


MAPS: dict[str, Callable[[int, int], resample.Taps]] = {
    "linear": lambda size, result: resample.linear_taps(size, result, False, None),
    "cubic": lambda size, result: resample.cubic_taps(size, result, False, None),
    "nearest": lambda size, result: resample.nearest_taps(size, result, None, exact=False),
    "gradient": lambda size, result: resample.transposed(resample.linear_taps(result, size, False, None)),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize(("size", "result"), [(16, 33), (17, 40), (31, 20)])
def test_groups_read_whole_vectors_within_a_line_and_sum_what_the_map_says(name: str, size: int, result: int) -> None:
    taps = MAPS[name](size, result)
    groups = resample._groups_of(taps)
    assert groups is not None
    assert all(0 <= base <= size - WINDOW for base in groups.bases)
    line = torch.randn(size, dtype=torch.float64)
    wanted = torch.stack([sum((weight * line[at] for at, weight in row), torch.zeros(())) for row in taps.rows])
    found, used = list[torch.Tensor](), 0
    for outputs, width in zip(groups.sizes[::2], groups.sizes[1::2], strict=True):
        total = torch.zeros(resample.GROUP, dtype=torch.float64)
        for group in range(used, used + width):
            at = slice(group * resample.GROUP, (group + 1) * resample.GROUP)
            read = line[groups.bases[group] : groups.bases[group] + WINDOW]
            total += torch.tensor(groups.weights[at]) * read[groups.lanes[at]]
        found, used = [*found, total[:outputs]], used + width
    torch.testing.assert_close(torch.cat(found), wanted.double(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("image", "size", "between"), [
    ((4, 100), (40, 50), (4, 50)), ((100, 4), (50, 40), (50, 4)), ((8, 8), (16, 32), (16, 8)),
    ((8, 10, 30), (16, 40, 15), (8, 10, 15)),
])
def test_what_shrinks_is_mapped_before_what_grows(
    image: tuple[int, ...], size: tuple[int, ...], between: tuple[int, ...],
) -> None:
    plan = MiniPlanner()
    held, out = plan.hold(torch.randn(image)), plan.scratch(size)
    before = len(plan.buffers)
    maps = {dim: resample.linear_taps(a, b, False, None) for dim, (a, b) in enumerate(zip(image, size, strict=True))}
    resample.apply_taps(plan, held, maps, out)
    floats = [buffer.numel() for buffer in plan.buffers[before:]]
    assert torch.Size(between).numel() in floats
    mode = {2: "bilinear", 3: "trilinear"}[len(image)]
    exact = interpolate(plan.fetch(held)[None, None].double(), size=size, mode=mode)[0, 0]
    torch.testing.assert_close(plan.fetch(out).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_result_that_eager_hands_out_transposed_is_made_so() -> None:
    given = torch.randn(2, 3, 32, 48)
    for function in (lambda x: torch.rot90(x, 1, (2, 3)), lambda x: torch.rot90(x, 1, (2, 3)) * 2 + 1):
        call = compiled(function, 1)
        for _ in range(3):
            found, expected = call(given), function(given)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_one_smoothed_column_has_a_value_for_each_row(mode: str) -> None:
    """torch 2.13 repeats the first row's where the operand is row-major: it is asked for its columns first."""
    given = torch.randn(2, 3, 9, 6)
    result = compiled(lambda x: interpolate(x, size=(4, 1), mode=mode, antialias=True), 1)(given)
    rows = interpolate(given.double(), size=(4, 6), mode=mode, antialias=True)
    wanted = interpolate(rows, size=(4, 1), mode=mode, antialias=True)
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5)


def specials(*shape: int, seed: int) -> torch.Tensor:
    """Return random numbers, of which one in eight is not finite."""
    drawn = torch.Generator().manual_seed(seed)
    values, places = torch.randn(shape, generator=drawn), torch.rand(shape, generator=drawn)
    for number, special in enumerate((torch.nan, torch.inf, -torch.inf)):
        values[(places > number / 24) & (places <= (number + 1) / 24)] = special
    return values


MODES: dict[str, dict[str, Any]] = {
    "linear": {"mode": "bilinear"}, "linear of corners": {"mode": "bilinear", "align_corners": True},
    "cubic": {"mode": "bicubic"}, "cubic of corners": {"mode": "bicubic", "align_corners": True},
    "smooth": {"mode": "bilinear", "antialias": True}, "smooth and cubic": {"mode": "bicubic", "antialias": True},
    "nearest": {"mode": "nearest"},
}


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize(("image", "size"), [
    ((3, 4), (6, 8)), ((3, 4), (3, 4)), ((3, 4), (7, 4)), ((3, 4), (3, 8)), ((8, 9), (4, 18)), ((1, 6), (1, 9)),
    ((5, 9), (10, 3)), ((6, 20), (12, 40)),
])
def test_what_is_not_finite_reaches_results_and_gradients_as_in_eager_where_a_weight_is_zero(
    name: str, image: tuple[int, int], size: tuple[int, int],
) -> None:
    how, given = MODES[name], specials(2, 16, *image, seed=1)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = given.contiguous(memory_format=memory_format).requires_grad_()
        exact, coming = given.double().requires_grad_(), specials(2, 16, *size, seed=2)
        result = compiled(lambda x: interpolate(x, size=size, **how), 1)(x)
        wanted = interpolate(exact, size=size, **how)
        torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5, equal_nan=True)
        pairs = (result, x), (wanted, exact)
        found, expected = (torch.autograd.grad(y, of, coming.to(y.dtype))[0] for y, of in pairs)
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5, equal_nan=True)


class Enlarged(torch.nn.Module):
    """Images of another size."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return interpolate(x, **self.how)


@pytest.mark.parametrize("name", ["linear", "cubic", "smooth"])
@pytest.mark.parametrize("size", [(6, 8), (3, 4), (3, 9)])
def test_what_is_not_finite_reaches_results_on_tiles_too(name: str, size: tuple[int, int]) -> None:
    given = specials(2, 3, 3, 4, seed=1)
    result = InferenceStep(Enlarged(size=size, **MODES[name]), Options(executor="tiles"))(given)
    wanted = interpolate(given.double(), size=size, **MODES[name])
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("size", [3, 7])
@pytest.mark.parametrize("mode", ["linear", "trilinear"])
def test_what_is_not_finite_in_lines_and_volumes(mode: str, size: int) -> None:
    given = specials(2, 3, *(3,) * (1 if mode == "linear" else 3), seed=1)
    result = compiled(lambda x: interpolate(x, size=size, mode=mode), 1)(given)
    wanted = interpolate(given.double(), size=size, mode=mode)
    torch.testing.assert_close(result.double(), wanted, atol=1e-5, rtol=1e-5, equal_nan=True)
