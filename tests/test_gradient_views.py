"""Gradients that only show elements of the gradient that a backward is given lie in its memory, as eager's do."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

A, B = (4, 8), (4, 8)
SHOWN: dict[str, Callable[..., torch.Tensor]] = {
    "cat": lambda a, b: torch.cat((a, b), 1),
    "stack": lambda a, b: torch.stack((a, b), 1),
    "transposed": lambda a, b: torch.cat((a.t(), b.t()), 1),
    "turned": lambda a, b: torch.stack((a, b)).transpose(0, 2).contiguous(),
    "expanded": lambda a, b: a.sum(1) - b.detach().sum(1) * 0,
}


def gradients(
    run: Callable[..., torch.Tensor], inputs: list[torch.Tensor], tangent: torch.Tensor,
) -> list[torch.Tensor | None]:
    return list(torch.autograd.grad(run(*inputs), inputs, tangent, allow_unused=True))


def memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", SHOWN)
def test_the_same_views_as_eager(name: str, dynamic: bool | None) -> None:
    model = SHOWN[name]
    compiled = torch.compile(model, backend="ipu", dynamic=dynamic)
    inputs = [torch.randn(A, requires_grad=True), torch.randn(B, requires_grad=True)]
    for _ in range(3):  # planned, found again, and quick
        tangent = torch.randn(model(*inputs).shape)
        for ours, theirs in zip(
            gradients(compiled, inputs, tangent), gradients(model, inputs, tangent), strict=True,
        ):
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert torch.equal(ours, theirs)
                assert ours.stride() == theirs.stride()
                assert memory(ours) == memory(tangent) == memory(theirs)


def test_a_gradient_that_lies_elsewhere_in_its_memory() -> None:
    compiled = torch.compile(SHOWN["cat"], backend="ipu")
    inputs = [torch.randn(A, requires_grad=True), torch.randn(B, requires_grad=True)]
    wide = torch.randn(6, 16)
    for tangent in (wide[2:], wide[:4], torch.randn(16, 4).t(), torch.ones(()).expand(4, 16)):
        found, expected = (gradients(run, inputs, tangent) for run in (compiled, SHOWN["cat"]))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))  # type: ignore[arg-type]


def test_what_is_computed_beside_a_view_is_computed() -> None:
    def model(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat((a, b * 2, a * b), 1)

    inputs = [torch.randn(A, dtype=torch.float64), torch.randn(B, dtype=torch.float64)]
    tangent = torch.randn(4, 24)
    expected = gradients(model, [x.requires_grad_() for x in inputs], tangent.double())
    found = gradients(
        torch.compile(model, backend="ipu"), [x.detach().float().requires_grad_() for x in inputs], tangent,
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs)  # type: ignore[union-attr]


def test_weights_keep_gradients_of_their_own() -> None:
    """Torch copies a view before it becomes a weight's gradient, which an optimiser or the next step writes."""

    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.randn(A)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat((self.first, self.second), 1) + x

    module = Joined()
    compiled = torch.compile(module, backend="ipu")
    x = torch.zeros(4, 16)
    kept = torch.randn(4, 16)
    tangent = kept.clone()
    for _ in range(2):
        compiled(x).backward(tangent)
    torch.testing.assert_close(module.first.grad, 2 * kept[:, :8])
    assert module.second.grad is not None
    module.second.grad.zero_()
    torch.testing.assert_close(module.first.grad, 2 * kept[:, :8])
    assert torch.equal(tangent, kept)


def test_complex_numbers_and_types_that_programs_do_not_have() -> None:
    for dtype in (torch.complex64, torch.bfloat16, torch.float64):
        inputs = [torch.randn(A).to(dtype).requires_grad_() for _ in range(2)]
        tangent = torch.randn(4, 16).to(dtype)
        torch._dynamo.reset()
        compiled = torch.compile(SHOWN["cat"], backend="ipu")
        for _ in range(2):
            found, expected = (gradients(run, inputs, tangent) for run in (compiled, SHOWN["cat"]))
            for ours, theirs in zip(found, expected, strict=True):
                assert ours is not None
                assert theirs is not None
                assert ours.dtype is dtype
                assert torch.equal(ours, theirs)
