"""Tensors of bfloat16 are read and written by the plan as the caller has them; what is moved keeps its bits."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels

pytestmark = pytest.mark.filterwarnings("ignore:torchipu. torch.bfloat16 does not exist")
EVERY = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
"""Each bfloat16 that there is."""
ROWS = torch.tensor([3, 0, 3, 254, 7])

MOVED: dict[str, Callable[..., torch.Tensor]] = {
    "cat": lambda x: torch.cat([x[:100], x[50:]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "transpose": lambda x: x.t().contiguous(),
    "flip": lambda x: x.flip(1),
    "roll": lambda x: x.roll((3, 5), (0, 1)),
    "rows": lambda x: x[ROWS],
    "columns": lambda x: x.index_select(1, ROWS),
    "gather": lambda x: x.gather(0, ROWS[None].expand(4, 5)),
    "embedding": lambda x: F.embedding(ROWS, x),
    "repeat": lambda x: x.repeat(2, 1),
    "slice and clone": lambda x: x[3:200, ::2].clone(),
    "padded": lambda x: F.pad(x, (1, 2), value=1.00390625),
    "padded with NaN": lambda x: F.pad(x, (1, 2), value=float("nan")),
}
COMPUTED: dict[str, Callable[..., object]] = {
    "one op": lambda x, y: x + y,
    "several": lambda x, y: torch.relu(x * y).sigmoid() + x,
    "a value that is read too": lambda x, y: ((made := x * 2), made.sum(1)),
    "both types": lambda x, y: ((made := x * y), made.float()),
    "twice": lambda x, y: ((made := x * y), made),
    "input and its own": lambda x, y: (x, x.float(), x.clone(), x.t()),
    "moved and computed": lambda x, y: torch.cat([x.t(), y.t() * 2], 1) + 1,
    "a view of a result": lambda x, y: (x + y).t()[1:],
    "product": lambda x, y: x @ y.t(),
    "norm": lambda x, y: F.layer_norm(x, x.shape[1:]) * y,
    "left to PyTorch": lambda x, y: torch.renorm(x + 1, 2, 0, 3.0) + y,
    "comparison": lambda x, y: (x > y, (x > y).to(x.dtype)),
    "with integers": lambda x, y: x * torch.arange(x.shape[1]),
    "a row": lambda x, y: x + y[0],
    "a number": lambda x, y: x * y[0, 0],
}


def _compiled(function: Callable[..., object], **options: object) -> Callable[..., object]:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", fullgraph=True, options=options)


def _strides(made: torch.Tensor) -> list[int]:
    """Of dimensions of more than one element, where alone they mean something."""
    return [stride for size, stride in zip(made.shape, made.stride(), strict=True) if size > 1 and made.numel()]


def _assert_near(made: object, exact: object, like: object) -> None:
    """Hold to eager PyTorch in float64, within a rounding to bfloat16 of each op."""
    ours, doubles, types = (value if isinstance(value, tuple) else (value,) for value in (made, exact, like))
    for mine, theirs, kind in zip(ours, doubles, types, strict=True):
        assert mine.dtype is kind.dtype
        assert _strides(mine) == _strides(kind)
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=2**-6, atol=2**-6, equal_nan=True)


@pytest.mark.parametrize("name", MOVED)
def test_what_is_moved_keeps_its_bits(name: str) -> None:
    x = EVERY.view(256, 256).clone()
    made = _compiled(MOVED[name])(x)
    assert isinstance(made, torch.Tensor)
    wanted = MOVED[name](x)
    are_numbers = ~wanted.isnan()
    assert made.dtype is torch.bfloat16
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made.view(torch.int16)[are_numbers], wanted.view(torch.int16)[are_numbers])


def test_floats_become_the_nearest_of_them() -> None:
    bits = torch.arange(0, 1 << 32, 65521 * 8 + 1, dtype=torch.int64).to(torch.int32)
    ties = (torch.arange(0, 1 << 16, 7, dtype=torch.int64) << 16 | 0x8000).to(torch.int32)
    x = torch.cat([bits, ties, ties - 1, ties + 1]).view(torch.float32)
    x = x[(x.abs() >= torch.finfo(torch.float32).tiny) | x.isnan()]
    made = _compiled(lambda x: (x * 1).bfloat16())(x)
    assert isinstance(made, torch.Tensor)
    torch.testing.assert_close(made, x.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("shape", [(37, 61), (4, 1)], ids=str)
def test_values_are_those_of_eager_pytorch(name: str, shape: tuple[int, int]) -> None:
    x, y = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    function = COMPUTED[name]
    compiled = _compiled(function)
    for _ in range(3):  # first calls, and short ones
        _assert_near(compiled(x, y), function(x.double(), y.double()), function(x, y))
    lying = x.t().contiguous().t(), torch.stack([y, y], 2)[..., 0]
    _assert_near(_compiled(function)(*lying), function(*(each.double() for each in lying)), function(*lying))


@pytest.mark.parametrize("option", ["floating_point_exceptions", "statistics", "verify"])
def test_options_that_look_at_results_see_the_same(option: str) -> None:
    x, y = torch.randn(2, 37, 61, generator=torch.Generator().manual_seed(2)).bfloat16()
    made = _compiled(COMPUTED["several"], **{option: True})(x, y)
    assert isinstance(made, torch.Tensor)
    plain = _compiled(COMPUTED["several"])(x, y)
    assert isinstance(plain, torch.Tensor)
    torch.testing.assert_close(made, plain, rtol=0, atol=0)


def test_images_with_their_channels_last_stay_so() -> None:
    x = torch.randn(2, 8, 9, 7).bfloat16().contiguous(memory_format=torch.channels_last)
    for function in (F.relu, lambda x: F.max_pool2d(x, 2), lambda x: F.conv2d(x, x[:1, :, :3, :3]), torch.clone):
        made = _compiled(function)(x)
        _assert_near(made, function(x.double()), function(x))


def test_a_training_step_has_the_gradients_of_eager_pytorch() -> None:
    torch.manual_seed(3)
    layers = torch.nn.Linear(24, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 5)
    model = torch.nn.Sequential(*layers).bfloat16()
    exact = copy.deepcopy(model).double()
    x, y = torch.randn(16, 24).bfloat16(), torch.randint(5, (16,))
    wanted = torch.autograd.grad(F.cross_entropy(exact(x.double()), y), list(exact.parameters()))
    scores = torch.compile(model, backend="ipu", fullgraph=True)(x)
    made = torch.autograd.grad(F.cross_entropy(scores, y), list(model.parameters()))
    for mine, theirs in zip(made, wanted, strict=True):
        assert mine.dtype is torch.bfloat16
        assert (mine.double() - theirs).norm() <= 0.05 * theirs.norm()


def test_what_is_written_in_place_reaches_the_tensor() -> None:
    x = torch.randn(40, 50).bfloat16()
    mine, theirs = x.clone(), x.clone()

    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x.sum(0)

    _assert_near((_compiled(write)(mine), mine), (write(theirs), theirs), (write(x.clone()), theirs))


def test_a_branch_converts_what_it_reads_itself() -> None:
    def chosen(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, y: x.sum(1) + 1, lambda x, y: y.sum(1) * 2, (x, y)) + x.amax(1)

    compiled = _compiled(chosen)
    x, y = torch.rand(2, 30, 40).bfloat16()
    for sign in (1, -1):
        _assert_near(compiled(x * sign, y), chosen(x.double() * sign, y.double()), chosen(x * sign, y))


def test_other_numbers_of_rows_are_served_by_the_plans_for_all_sizes() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(COMPUTED["several"], backend="ipu", dynamic=True)
    for rows in (3, 17, 64):
        x, y = torch.randn(2, rows, 12).bfloat16()
        _assert_near(compiled(x, y), COMPUTED["several"](x.double(), y.double()), COMPUTED["several"](x, y))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    x, y = torch.randn(2, 512, 600, generator=torch.Generator().manual_seed(4)).bfloat16()
    one, three = (_compiled(COMPUTED["several"], host_threads=threads)(x, y) for threads in (1, 3))
    assert isinstance(one, torch.Tensor)
    assert isinstance(three, torch.Tensor)
    assert torch.equal(one.view(torch.int16), three.view(torch.int16))


def test_a_chain_is_one_step_and_what_is_moved_needs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    names = planned_kernels(monkeypatch)
    x, y = torch.randn(2, 64, 48).bfloat16()
    _compiled(lambda x, y: torch.relu(x + y) * 2)(x, y)
    assert names == ["chain"]
    names.clear()
    _compiled(lambda x, y: torch.cat([x, y]).t().contiguous())(x, y)
    assert set(names) <= {"copy", "transpose"}
