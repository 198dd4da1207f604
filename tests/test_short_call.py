"""Training graphs that are called without AOT autograd: which are, and that they do what eager's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch._aot_autograd import schemas
from torch.autograd import forward_ad

from torchipu.backend import COUNTS, ipu_backend, short_call
from torchipu.errors import CaptureError


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def is_short(result: torch.Tensor) -> bool:
    """Whether a result was made by a call without AOT autograd."""
    node: Any = result.grad_fn
    return bool(node._forward_cls.__module__ == short_call.__name__)


def first(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found[0]


def trained(call: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """Call for the first time, and let gradients flow back."""
    found = call(*inputs)
    first(found).sum().backward()
    return found


SINCE = schemas.ViewAndMutationMeta.__dataclass_fields__
needs_names = pytest.mark.skipif(
    "num_opaque_objects_saved_for_bw" not in SINCE, reason="this torch does not say all that AOT autograd sees to",
)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def gradients(model: nn.Module, call: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    call(x).pow(2).mean().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@needs_names
def test_a_model_is_called_shortly_after_its_first_backward_with_the_same_gradients() -> None:
    model, x = mlp(), torch.randn(4, 6)
    compiled = torch.compile(model, backend="ipu")
    assert not is_short(trained(compiled, x))
    assert is_short(compiled(x))
    exact = [g.float() for g in gradients(model.double(), model, x.double())]
    model.float()
    for _ in range(2):
        for found, expected in zip(gradients(model, compiled, x), exact, strict=True):
            torch.testing.assert_close(found, expected)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert is_short(compiled(x))


class Written(nn.Module):
    """A weight that each call writes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.scale.add_(0)
        return (x * self.scale).square()


class Handed(nn.Module):
    """A result that is a view of the input."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * x, x[1:]


class Unreached(nn.Module):
    """A weight that wants a gradient and gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x * self.weight.argmax()


@pytest.mark.parametrize("make", [Written, Handed, Unreached])
def test_graphs_that_give_aot_autograd_something_to_do_are_called_through_it(make: Callable[[], nn.Module]) -> None:
    model = make()
    compiled = torch.compile(model, backend="ipu")
    x = torch.randn(4, 6, requires_grad=True)
    trained(compiled, x)
    result = first(compiled(x))
    assert not is_short(result)
    found, = torch.autograd.grad(result.sum(), x)
    expected, = torch.autograd.grad(first(model(x)).sum(), x)
    torch.testing.assert_close(found, expected)


def test_graphs_compiled_under_autocast_are_called_through_aot_autograd() -> None:
    model, x = mlp(), torch.randn(4, 6)
    compiled = torch.compile(model, backend="ipu")
    with torch.autocast("cpu", torch.bfloat16):
        trained(compiled, x)
        assert not is_short(compiled(x))


def test_a_graph_that_holds_tensors_is_called_through_aot_autograd() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (self.inner(x),)

    model, x = torch.fx.symbolic_trace(Several()), torch.randn(4, 6)
    run = ipu_backend(model, [x])
    trained(run, x)
    result = first(run(x))
    assert not is_short(result)
    torch.testing.assert_close(result, first(model(x)))


def test_one_tensor_in_two_places_gets_both_gradients() -> None:
    compiled = torch.compile(lambda x, y: x.sin() * y, backend="ipu")
    x, y = (torch.randn(5, requires_grad=True) for _ in range(2))
    trained(compiled, x, x)
    for left, right in ((x, x), (x, y), (x, x)):
        trained(compiled, left, right)
        found = torch.autograd.grad(compiled(left, right).sum(), [left, right])
        expected = torch.autograd.grad((left.sin() * right).sum(), [left, right])
        torch.testing.assert_close(found, expected)


def test_sizes_that_change_are_right_at_every_call() -> None:
    model = mlp()
    compiled = torch.compile(model, backend="ipu", dynamic=True)
    for rows in (3, 7, 4, 4):
        x = torch.randn(rows, 6)
        found = gradients(model, compiled, x)
        torch.testing.assert_close(found, gradients(model, model, x))


@needs_names
def test_gradients_come_in_any_order_or_not_at_all() -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return x.sin(), x.cos(), x.argmax(1)

    compiled = torch.compile(several, backend="ipu")
    x = torch.randn(4, 6, requires_grad=True)
    trained(compiled, x)
    sine, cosine, place = compiled(x)
    assert is_short(sine)
    assert not place.requires_grad
    found, = torch.autograd.grad(sine, x, torch.ones(6, 4).t(), retain_graph=True)
    torch.testing.assert_close(found, x.cos())
    found, = torch.autograd.grad(cosine.sum(), x)
    torch.testing.assert_close(found, -x.sin())


def test_a_backward_runs_twice_where_its_graph_is_retained_and_once_where_not() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="ipu")
    x = torch.randn(4, requires_grad=True)
    trained(compiled, x)
    result = compiled(x).sum()
    assert torch.equal(*(torch.autograd.grad(result, x, retain_graph=True)[0] for _ in range(2)))
    torch.autograd.grad(result, x)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(result, x)


def test_what_was_saved_and_written_since_is_not_used() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="ipu")
    x = torch.randn(4, requires_grad=True)
    trained(compiled, x)
    result = compiled(x).sum()
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_hooks_of_what_is_saved_see_it() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="ipu")
    x = torch.randn(4, requires_grad=True)
    trained(compiled, x)
    packed: list[torch.Tensor] = []

    def pack(value: torch.Tensor) -> torch.Tensor:
        packed.append(value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        result = compiled(x)
    found, = torch.autograd.grad(result.sum(), x)
    assert packed
    torch.testing.assert_close(found, x.cos())


@needs_names
def test_a_gradient_of_a_gradient_says_where_to_take_it() -> None:
    compiled = torch.compile(lambda x: x.sin(), backend="ipu")
    x = torch.randn(4, requires_grad=True)
    trained(compiled, x)
    result = compiled(x)
    assert is_short(result)
    slope, = torch.autograd.grad(result.sum(), x, create_graph=True)
    torch.testing.assert_close(slope.detach(), x.cos().detach())
    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
        slope.sum().backward()


def test_dynamo_does_not_look_into_programs_where_it_compiles_what_calls_backward() -> None:
    model, x = mlp(), torch.randn(4, 6)

    def step() -> torch.Tensor:
        model.zero_grad()
        loss = F.mse_loss(model(x), torch.zeros(4, 3))
        loss.backward()
        return loss.detach()

    compiled = torch.compile(step, backend="ipu")
    for _ in range(2):
        compiled()
    graphs = COUNTS.graphs
    for _ in range(3):
        compiled()
    assert COUNTS.graphs == graphs
    found = [parameter.grad for parameter in model.parameters()]
    step()
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()])


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("shows_a_view", [False, True])
def test_a_tangent_is_refused_and_not_lost(needs_gradient: bool, shows_a_view: bool) -> None:
    torch._dynamo.reset()
    weight = torch.randn(4, 2, requires_grad=needs_gradient)
    run = torch.compile(lambda x: (x @ weight, x.t()) if shows_a_view else x @ weight, backend="ipu")
    x = torch.randn(3, 4)
    for _ in range(2):
        run(x)
    with forward_ad.dual_level():
        run(x)  # which has no tangent
        with pytest.raises(CaptureError, match="it is given a tensor with a tangent") as caught:
            run(forward_ad.make_dual(x, torch.ones_like(x)))
    assert "torch.func.jvp" in caught.value.remedy
    inside = torch.compile(lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1], backend="ipu")
    torch.testing.assert_close(inside(x), x.cos() * x)
