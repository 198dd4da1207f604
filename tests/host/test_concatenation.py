"""Pieces of `cat` and `stack` are stored where they belong, if chains make them: values against float64, and steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchipu
from torchipu.errors import ExecutionError
from torchipu.host.planner import Planner

Function = Callable[..., torch.Tensor]
STORED_IN_PLACE: dict[str, Function] = {
    "rows": lambda x, y: torch.cat((x + 1, y * 2)),
    "columns": lambda x, y: torch.cat((x + 1, y * 2), -1),
    "columns of other widths": lambda x, y: torch.cat((x + 1, y[:, :, :40] * 2), -1),
    "a dimension between": lambda x, y: torch.cat((x.sin(), y.cos(), x * y), 1),
    "stacked": lambda x, y: torch.stack((x + 1, y * 2)),
    "interleaved": lambda x, y: torch.stack((x + 1, y * 2), -1),
    "read by an op": lambda x, y: torch.cat((x + 1, y * 2), -1).sum(-1),
    "read by a chain": lambda x, y: torch.cat((x + 1, y * 2), -1).relu() * 3,
}
COPIED: dict[str, tuple[Function, int]] = {
    "what is given": (lambda x, y: torch.cat((x, y)), 2),
    "the lesser part given": (lambda x, y: torch.cat((x + 1, y[:1])), 1),
    "the greater part given": (lambda x, y: torch.cat((x[:1] + 1, y)), 2),
    "a piece twice": (lambda x, y: torch.cat([x + 1] * 2), 2),
    "a piece that others read": (lambda x, y: torch.cat(((z := x + 1), y * 2)).sum() + (z @ z.mT).sum(), 1),
    "narrow columns": (lambda x, y: torch.cat((x[:, :, :3] + 1, y[:, :, :3] * 2), -1), 1),
    "what a product makes": (lambda x, y: torch.cat((x @ y.mT, y @ x.mT)), 2),
}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that move elements alone, of all plans that are made."""
    names: list[str] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        names.extend(
            step.kernel.name for step in planner.steps
            if step.kernel is not None and step.kernel.name in ("copy", "transpose", "concatenate_rows")
        )
        return collect(planner)

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return names


def compiled_beside_float64(function: Function, *inputs: torch.Tensor) -> None:
    torch._dynamo.reset()
    result = torch.compile(function, backend="ipu", fullgraph=True)(*inputs)
    wanted = function(*(value.double() if value.is_floating_point() else value for value in inputs))
    torch.testing.assert_close(result.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", STORED_IN_PLACE)
def test_pieces_are_stored_where_they_belong(name: str, copies: list[str]) -> None:
    compiled_beside_float64(STORED_IN_PLACE[name], *torch.randn(2, 3, 40, 64))
    assert copies == []


@pytest.mark.parametrize("name", COPIED)
def test_what_does_not_fit_is_copied(name: str, copies: list[str]) -> None:
    function, count = COPIED[name]
    compiled_beside_float64(function, *torch.randn(2, 3, 40, 64))
    assert len(copies) == count


LOOKED_UP: dict[str, Function] = {
    "rows of two indices": lambda x, i: torch.cat((x[i[0]], x[i[1]]), -1),
    "behind each other": lambda x, i: torch.cat((x[i[0]], x[i[1]])),
    "stacked": lambda x, i: torch.stack((x[i[0]], x[i[1]]), 1),
    "in heads": lambda x, i: torch.cat((x.view(40, 4, 16)[i[0]], x.view(40, 4, 16)[i[1]]), -1),
    "selected": lambda x, i: torch.cat((x.index_select(0, i[0]), x.index_select(0, i[1]) * 2), -1),
    "embedded": lambda x, i: torch.cat((nn.functional.embedding(i[0], x), nn.functional.embedding(i[1], x)), -1),
    "beside a chain": lambda x, i: torch.cat((x[i[0]], x[:30] + 1, x[i[1]]), -1),
    "of an inner dimension": lambda x, i: torch.cat((x.view(5, 8, 64)[:, i[0] % 8], x.view(5, 8, 64)[:, i[1] % 8]), -1),
    "a piece that others read": lambda x, i: torch.cat((z := x[i[0]], x[i[1]]), -1).sum() + (z @ z.mT).sum(),
}
LOOKED_UP_AND_COPIED: dict[str, tuple[Function, int]] = {
    "narrow heads": (lambda x, i: torch.cat((x.view(40, 16, 4)[i[0]], x.view(40, 16, 4)[i[1]]), -1), 1),
    "columns": (lambda x, i: torch.cat((x[:, i[0]], x[:, i[1]])), 0),
    "columns side by side": (lambda x, i: torch.cat((x[:, i[0]], x[:, i[1]]), -1), 1),
    "planes": (lambda x, i: torch.cat((nn.functional.embedding(i, x), nn.functional.embedding(i, x + 1)), 1), 1),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_rows_that_are_looked_up_are_stored_where_they_belong(name: str, copies: list[str]) -> None:
    compiled_beside_float64(LOOKED_UP[name], torch.randn(40, 64), torch.randint(0, 40, (2, 30)))
    assert copies == []


@pytest.mark.parametrize("name", LOOKED_UP_AND_COPIED)
def test_rows_that_do_not_fit_are_copied(name: str, copies: list[str]) -> None:
    function, count = LOOKED_UP_AND_COPIED[name]
    compiled_beside_float64(function, torch.randn(40, 64), torch.randint(0, 40, (2, 30)))
    assert len(copies) == count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32], ids=str)
def test_channels_of_images_that_lie_last_are_put_together_in_one_step(dtype: torch.dtype, copies: list[str]) -> None:
    images = [
        (torch.randn(2, channels, 6, 5) * 9).to(dtype).to(memory_format=torch.channels_last) for channels in (8, 3, 17)
    ]
    torch._dynamo.reset()
    joined = torch.compile(lambda *given: torch.cat(given, 1), backend="ipu", fullgraph=True)(*images)
    assert torch.equal(joined, torch.cat(images, 1))
    assert joined.is_contiguous(memory_format=torch.channels_last)
    assert copies == ["concatenate_rows"]


@pytest.mark.parametrize("shape", [(0, 64), (40, 0)])
def test_no_rows_and_rows_of_nothing(shape: tuple[int, int]) -> None:
    index = torch.randint(0, 40, (2, 30 if shape[0] else 0))
    compiled_beside_float64(LOOKED_UP["rows of two indices"], torch.randn(shape), index)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8])
def test_rows_of_other_types_are_those_of_eager_pytorch(dtype: torch.dtype) -> None:
    x, index = torch.randint(0, 99, (40, 64)).to(dtype), torch.randint(0, 40, (2, 30))
    for name in ("rows of two indices", "in heads", "stacked"):
        torch._dynamo.reset()
        result = torch.compile(LOOKED_UP[name], backend="ipu", fullgraph=True)(x, index)
        assert result.dtype is dtype
        assert torch.equal(result, LOOKED_UP[name](x, index))


def test_an_index_beyond_the_table_is_told_though_its_rows_are_part_of_a_whole() -> None:
    index = torch.randint(0, 40, (2, 30))
    index[1, 7] = 40
    torch._dynamo.reset()
    with pytest.raises(ExecutionError, match="index"):
        torch.compile(LOOKED_UP["rows of two indices"], backend="ipu", fullgraph=True)(torch.randn(40, 64), index)


@pytest.mark.parametrize("name", ["rows of two indices", "in heads", "stacked", "embedded"])
def test_gradients_of_what_is_looked_up_are_summed_where_they_lie(name: str, copies: list[str]) -> None:
    x, index = torch.randn(40, 64, requires_grad=True), torch.randint(0, 40, (2, 30))
    torch._dynamo.reset()
    (torch.compile(LOOKED_UP[name], backend="ipu", fullgraph=True)(x, index).sin()).sum().backward()
    exact = x.detach().double().requires_grad_()
    LOOKED_UP[name](exact, index).sin().sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    assert copies == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool, torch.uint8])
def test_other_types_have_the_values_of_eager_pytorch(dtype: torch.dtype) -> None:
    x, y = (value.to(dtype) for value in torch.randint(0, 2, (2, 40, 64)))
    for function in (
        lambda x, y: torch.cat((x ^ True if dtype is torch.bool else x + 1, y | x if dtype is torch.bool else y * x)),
        lambda x, y: torch.stack((x > y, y > x), -1), lambda x, y: torch.cat((x * y, (x * y).float())),
    ):
        torch._dynamo.reset()
        torch.testing.assert_close(
            torch.compile(function, backend="ipu", fullgraph=True)(x, y), function(x, y), rtol=0, atol=0,
        )


def test_gradients_go_through(copies: list[str]) -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.cat((x.sin(), x * y), -1) * torch.stack((x, y.exp()), -1).flatten(-2)).sum()

    inputs = [value.requires_grad_() for value in torch.randn(2, 3, 64)]
    wide = [value.detach().double().requires_grad_() for value in inputs]
    torch._dynamo.reset()
    torch.compile(loss, backend="ipu")(*inputs).backward()
    loss(*wide).backward()
    for ours, wanted in zip(inputs, wide, strict=True):
        torch.testing.assert_close(ours.grad.double(), wanted.grad, rtol=1e-5, atol=1e-5)


class Shifted(nn.Module):
    """Puts what depends on weights alone beside what depends on the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((self.weight.exp(), x * 2), -1)


class Squared(nn.Module):
    """Compares what a model makes with what is wanted."""

    def __init__(self, inner: Shifted) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return ((self.inner(x) - wanted) ** 2).mean()


def test_what_is_computed_once_from_frozen_weights_stays() -> None:
    model = Shifted().eval()
    step = torchipu.InferenceStep(model, options=torchipu.Options(frozen_weights=True))
    for _ in range(3):
        x = torch.randn(4, 64)
        torch.testing.assert_close(step(x), model(x))


class Beside(Shifted):
    """Puts two pieces that depend on the input beside one that does not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x * 2, self.weight.exp(), x + 1), -1)


def test_beside_what_is_computed_once_the_others_are_stored_in_place(copies: list[str]) -> None:
    model, x = Beside().eval(), torch.randn(4, 64)
    step = torchipu.InferenceStep(model, options=torchipu.Options(frozen_weights=True))
    torch.testing.assert_close(step(x), model(x))
    assert copies == ["copy"]  # of the one piece; all three would be put together in one step of another name


def test_micro_batches_have_each_its_own() -> None:
    model, judge = Squared(Shifted()), Squared(Shifted())
    judge.load_state_dict(model.state_dict())
    options = torchipu.Options(device_iterations=2, gradient_accumulation=3)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1), options)
    optimiser = torch.optim.SGD(judge.parameters(), 0.1)
    x, wanted = torch.randn(24, 64), torch.randn(24, 128)
    step(x, wanted)
    for rows, targets in zip(x.split(12), wanted.split(12), strict=True):
        optimiser.zero_grad()
        for part, target in zip(rows.split(4), targets.split(4), strict=True):
            (judge(part, target) / 3).backward()
        optimiser.step()
    torch.testing.assert_close(model.inner.weight, judge.inner.weight, rtol=1e-4, atol=1e-5)
