"""Normalisations of halves and bfloats with their channels last: nothing is transposed, and halves are rounded once."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels

NORMS: dict[str, Callable[..., torch.Tensor]] = {
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    "batch, relu": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True).relu(),
    "group": lambda x, w, b: F.group_norm(x, 3, w, b),
}
SHAPES = [(3, 12, 5, 7), (2, 48, 19, 17)]


def given(shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=random).contiguous(memory_format=torch.channels_last)
    return [x.to(dtype), torch.linspace(-1, 2, shape[1]).to(dtype), torch.linspace(2, -1, shape[1]).to(dtype)]


def compiled(norm: Callable[..., torch.Tensor], **options: object) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    call: Callable[..., torch.Tensor] = torch.compile(norm, backend="ipu", options=options)
    return call


def results(norm: Callable[..., torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [value.detach().clone(memory_format=torch.preserve_format).requires_grad_() for value in values]
    out = norm(*leaves)
    out.backward(values[0].flip(0))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NORMS)
def test_values_and_gradients_are_those_of_double_precision(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = planned_kernels(monkeypatch)
    values = given(shape, dtype)
    found = results(compiled(NORMS[name]), values)
    wanted = results(NORMS[name], [value.double() for value in values])
    tolerance = 2e-3 if dtype is torch.float16 else 2e-2
    for mine, exact in zip(found, wanted, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(mine.double(), exact, atol=4 * tolerance, rtol=tolerance)
    assert found[0].stride() == found[1].stride() == values[0].stride()
    assert "transpose" not in kernels


@pytest.mark.parametrize("name", NORMS)
def test_any_number_of_threads_gives_the_same_bits(name: str) -> None:
    values = given(SHAPES[1], torch.float16)
    first, *others = [results(compiled(NORMS[name], host_threads=threads), values) for threads in (1, 2, 3)]
    for other in others:
        assert all(map(torch.equal, first, other))


def test_random_bits_are_drawn_by_place_however_images_lie() -> None:
    values = given(SHAPES[1], torch.float16)
    norm = compiled(NORMS["group"], stochastic_rounding=True, seed=5)
    lying = norm(*values)
    norm = compiled(NORMS["group"], stochastic_rounding=True, seed=5)
    assert torch.equal(lying, norm(values[0].contiguous(), *values[1:]))
