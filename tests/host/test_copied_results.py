"""Which results a plan copies, and which lie where they were made, or where another result or an argument is.

What is copied needlessly has the same values: the steps of the plans tell it, and so do the bytes that profiles count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import Tensor

from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[HostPlan]]:
    """The host plans that are made."""
    made: list[HostPlan] = []
    plan = Planner.plan

    def kept(self: Planner) -> HostPlan:
        made.append(plan(self))
        return made[-1]

    monkeypatch.setattr(Planner, "plan", kept)
    yield made
    torch._dynamo.reset()


def steps_of(plan: HostPlan) -> list[str]:
    return [step.kernel.name for step in plan.steps if step.kernel is not None]


def as_eager(function: Callable[..., Any], *args: Tensor) -> list[Tensor]:
    """Call a function compiled and in eager PyTorch; compare values and what shares memory; return ours."""
    ours, theirs = ([arg.clone(memory_format=torch.preserve_format) for arg in args] for _ in range(2))
    found, wanted = torch.compile(function, backend="ipu", fullgraph=True)(*ours), function(*theirs)
    all_found, all_wanted = ([*made, *given] if isinstance(made, tuple) else [made, *given]
                             for made, given in ((found, ours), (wanted, theirs)))
    torch.testing.assert_close(all_found, all_wanted)
    assert memories(all_found) == memories(all_wanted)
    return all_found[: len(all_found) - len(args)]


def memories(tensors: list[Tensor]) -> list[int]:
    """Return for each tensor the number of the first that lies in the same memory."""
    places = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [places.index(place) for place in places]


def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    made = x * 2
    return made, made.t()


@pytest.mark.parametrize(("function", "steps"), [
    pytest.param(lambda x: x.clone(), ["copy"], id="a copy of an argument"),
    pytest.param(lambda x: x[1:].clone(), ["copy"], id="a copy of a part of an argument"),
    pytest.param(lambda x: (x, x * 2), ["chain"], id="an argument"),
    pytest.param(twice, ["chain"], id="a view of a result"),
])
def test_results_are_copied_where_eager_copies_and_nowhere_else(
    function: Callable[..., Any], steps: list[str], plans: list[HostPlan],
) -> None:
    as_eager(function, torch.randn(4, 4))
    assert [steps_of(plan) for plan in plans] == [steps]


def test_an_argument_is_written_with_one_copy(plans: list[HostPlan]) -> None:
    """What is stored in the caller's tensor is copied into it, and not before as well."""
    def write(x: Tensor, y: Tensor) -> Tensor:
        return x.view(-1).copy_(y.reshape(-1))

    as_eager(write, torch.randn(3, 4), torch.randn(3, 4))
    assert [steps_of(plan) for plan in plans] == [["copy"]]


def test_a_view_that_aot_autograd_makes_anew_is_not_copied(plans: list[HostPlan]) -> None:
    with torch._functorch.config.patch(view_replay_for_aliased_outputs=False):
        as_eager(lambda x: (x[1:], x.t() * 2), torch.randn(3, 4))
    assert [steps_of(plan) for plan in plans] == [["chain"]]


def test_a_copy_that_only_the_backward_reads_lies_where_the_argument_does(plans: list[HostPlan]) -> None:
    """It is kept for the backward as the argument is; who writes there meanwhile is noticed elsewhere."""
    x, weight = torch.randn(5, 4), torch.tensor(1.5, requires_grad=True)
    torch.compile(lambda x, weight: x[1:3].clone() * weight, backend="ipu")(x, weight).sum().backward()
    torch.testing.assert_close(weight.grad, x[1:3].sum())
    assert "copy" not in [name for plan in plans for name in steps_of(plan)]


@pytest.mark.parametrize("function", [
    pytest.param(lambda x, weight: (x * weight).exp().sum(), id="a result"),
    pytest.param(lambda x, weight: ((x * weight).tanh() * 2).sum(), id="an operand"),
])
def test_what_is_saved_for_the_backward_lies_as_it_was_made(
    function: Callable[[Tensor, Tensor], Tensor], plans: list[HostPlan],
) -> None:
    """Images with their channels last: nobody but the backward reads them, which needs no other order."""
    def gradient(call: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        weight = torch.ones(1, dtype=dtype, requires_grad=True)
        call(images.to(dtype), weight).backward()
        assert weight.grad is not None
        return weight.grad.double()

    images = torch.randn(2, 8, 5, 6).contiguous(memory_format=torch.channels_last)
    found = gradient(torch.compile(function, backend="ipu"), torch.float32)
    torch.testing.assert_close(found, gradient(function, torch.float64), rtol=1e-5, atol=1e-5)
    assert [steps_of(plan) for plan in plans] == [["chain", "reduce_rows"]] * 2
    saved = plans[0].outputs[1]
    assert saved.strides == images.stride()
