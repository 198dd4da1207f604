"""Group normalisation of values with their channels last: values, gradients, layouts, and any number of threads."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchipu.host import planner

SHAPES = {
    "small images": ((3, 12, 5, 7), 4),
    "one group": ((2, 64, 20, 23), 1),
    "a group for each channel": ((2, 40, 9, 9), 40),
    "more columns than are taken together": ((2, 300, 12, 11), 10),
    "a chunk that is not full": ((1, 128, 19, 17), 32),
    "volumes": ((2, 16, 5, 6, 7), 2),
}


def norm(shape: tuple[int, ...], groups: int, dtype: torch.dtype, *, affine: bool = True) -> nn.GroupNorm:
    layer = nn.GroupNorm(groups, shape[1], affine=affine).to(dtype)
    if affine:
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-1, 2, shape[1]))
            layer.bias.copy_(torch.linspace(3, -1, shape[1]))
    return layer


def compiled(layer: nn.Module, threads: int) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = torch.compile(layer, backend="ipu", options={"host_threads": threads})
    return call


def laid_out(shape: tuple[int, ...]) -> torch.Tensor:
    memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    values = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * 2 + 30
    return values.contiguous(memory_format=memory_format)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients_are_those_of_double_precision(name: str, affine: bool) -> None:
    shape, groups = SHAPES[name]
    given = laid_out(shape)
    found, expected = given.clone().requires_grad_(), given.double().requires_grad_()
    ours, theirs = (norm(shape, groups, dtype, affine=affine) for dtype in (torch.float32, torch.float64))
    result, wanted = compiled(ours, 1)(found), theirs(expected)
    assert result.stride() == given.stride()
    torch.testing.assert_close(result.double(), wanted, atol=1e-4, rtol=1e-5)
    tangent = laid_out(shape) - 29
    result.backward(tangent)
    wanted.backward(tangent.double())
    assert found.grad is not None
    assert found.grad.stride() == given.stride()
    torch.testing.assert_close(found.grad.double(), expected.grad, atol=1e-4, rtol=1e-4)
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad.double(), other.grad, atol=1e-3, rtol=1e-4)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    shape, groups = SHAPES["more columns than are taken together"]
    given = laid_out(shape)
    results = []
    for threads in (1, 2, 3):
        x = given.clone().requires_grad_()
        result = compiled(norm(shape, groups, torch.float32), threads)(x)
        result.backward(given)
        results.append((result.detach(), x.grad))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))  # type: ignore[arg-type]


def test_no_step_transposes() -> None:
    seen: list[str] = []
    plan = planner.Planner.plan

    def noted(self: planner.Planner) -> object:
        made = plan(self)
        seen.extend(step.kernel.name for step in made.steps)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner.Planner, "plan", noted)
        shape, groups = SHAPES["small images"]
        x = laid_out(shape).requires_grad_()
        compiled(norm(shape, groups, torch.float32), 1)(x).backward(laid_out(shape))
    assert "group_row_apply" in seen
    assert "group_row_grad_apply" in seen
    assert not {"transpose", "copy"} & set(seen), seen
