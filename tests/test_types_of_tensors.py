"""Inputs of types that extend torch.Tensor: a compiled function does with them what eager mode does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


class Tagged(torch.Tensor):
    """A type of the user's, as `torch.Tensor.as_subclass` makes it."""


LYING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": torch.clone, "transposed": torch.t, "double": torch.Tensor.double,
    "with a sign apart": lambda x: torch.complex(x, x).conj().imag,
}
COMPUTED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a part": lambda x: x[1:], "a view": lambda x: x.reshape(-1), "a view of a result": lambda x: (x * x).t(),
    "elements": lambda x: x.add(1), "an operator left to eager": lambda x: torch.logcumsumexp(x.abs().float(), 0),
}


@pytest.mark.parametrize("computed", COMPUTED)
@pytest.mark.parametrize("lying", LYING)
@pytest.mark.filterwarnings("ignore:torchipu. torch.float64 does not exist")
def test_a_type_of_the_users_is_computed_as_eager_does(lying: str, computed: str) -> None:
    torch._dynamo.reset()
    values, compute = LYING[lying](torch.randn(30, 40)), COMPUTED[computed]
    compiled, wanted = torch.compile(compute, backend="ipu"), compute(values.as_subclass(Tagged))
    for _ in range(2):  # at the first call AOT autograd watches what is done
        found = compiled(values.as_subclass(Tagged))
        assert type(found) is Tagged
        plain, expected = found.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor)
        torch.testing.assert_close(plain, expected, rtol=1e-5, atol=1e-5)


def test_a_gradient_reaches_a_tensor_of_the_users_type() -> None:
    torch._dynamo.reset()
    x = torch.randn(30, 40).as_subclass(Tagged).requires_grad_()
    (found,) = torch.autograd.grad(torch.compile(lambda x: (x * 3)[1:].sum(), backend="ipu")(x), x)
    assert found[0].sum() == 0
    assert bool((found[1:] == 3).all())
