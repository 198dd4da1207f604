"""Control flow that Dynamo emits: values and gradients as eager gives them, on one and on several threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import associative_scan, map, scan, while_loop

import torchipu
from tests.ops.judge import judge
from tests.releases import TRAINED_SCANS


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def agree(function: Callable[..., Any], *args: torch.Tensor, grads: bool = True) -> None:
    """Judge values, and the gradients of all floating arguments."""
    judge(function, *(arg.requires_grad_() if grads and arg.is_floating_point() else arg for arg in args))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", fullgraph=True)


def test_what_a_loop_carries_may_also_be_around_its_body() -> None:
    def looped(x: torch.Tensor) -> Any:
        start = torch.tensor(0)
        _, total, doubled = while_loop(
            lambda i, u, v: i < 3, lambda i, u, v: (i + 1, u + v + x, v * 2), (start, x, x),
        )
        return total, doubled, scan(lambda c, y: (c + y * x, c + x), x, torch.stack([x, x * 2]))

    x = normal(4)
    torch.testing.assert_close(compiled(looped)(x), looped(x))


# --------------------------------------------------------------------------- cond
@pytest.mark.parametrize("sign", [1, -1])
def test_cond_runs_the_branch_that_the_condition_names(sign: int) -> None:
    x, w = normal(5, 7).abs() * sign, normal(7, 3)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a, b: (a @ b).sin(), lambda a, b: a[:, :3] * 2 + b[0], (x, w))

    agree(function, x, w)


def test_cond_chooses_anew_at_each_call() -> None:
    chosen = compiled(lambda p, x: torch.cond(p, lambda a: a + 1, lambda a: a.clone(), (x,)))
    x = normal(4)
    for flag in (True, False, True):
        assert torch.equal(chosen(torch.tensor(flag), x), x + 1 if flag else x)


def test_a_branch_that_would_trap_does_not_run() -> None:
    table = normal(4, 3)

    def function(i: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return torch.cond(i.max() < 4, lambda i, t: t[i], lambda i, t: t.sum() + torch.zeros_like(t[:2]), (i, table))

    taken = compiled(function)
    assert torch.equal(taken(torch.tensor([3, 1]), table), table[[3, 1]])
    torch.testing.assert_close(taken(torch.tensor([9, 1]), table), table.sum().expand(2, 3))


@pytest.mark.suffices(values=[(1.0, -1.0), (-1.0, 1.0)])
@pytest.mark.parametrize("values", [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)])
def test_conds_within_conds(values: tuple[float, float]) -> None:
    def inner(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cond(b.sum() > 0, lambda a, b: a * b, lambda a, b: a - b, (a, b))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cond(a.sum() > 0, inner, lambda a, b: inner(b, a).exp(), (a, b))

    agree(function, torch.full((6,), values[0]), torch.full((6,), values[1]))


def test_values_copied_in_a_branch_are_not_taken_for_there_after_it() -> None:
    """Both branches and the code after them need the same transposed operand in row-major order."""

    def function(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        t = x.t()
        chosen = torch.cond(p, lambda t: t.cumsum(0), lambda t: t.cumsum(0) * 2, (t,))
        return chosen + t.cumsum(0)

    for flag in (True, False):
        agree(function, torch.tensor(flag), normal(5, 9))


# --------------------------------------------------------------------------- loops
def test_while_loop_ends_when_its_test_says_so() -> None:
    def function(x: torch.Tensor) -> Any:
        return while_loop(lambda i, a: a.norm() < 100, lambda i, a: (i + 1, a * 1.5 + i), (torch.tensor(0), x))

    for scale in (0.1, 1.0, 1000.0):  # many trips, some, none
        agree(function, normal(4, 3) * scale, grads=False)


def test_while_loop_swaps_what_it_carries_and_reads_what_lies_around_it() -> None:
    def function(a: torch.Tensor, b: torch.Tensor, step: torch.Tensor) -> Any:
        def body(i: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
            return i + 1, b.clone(), a + step.sum()

        return while_loop(lambda i, a, b: i < 5, body, (torch.tensor(0), a, b))

    agree(function, normal(3, 4), normal(3, 4) + 10, normal(3), grads=False)


def test_loops_within_loops_and_conds() -> None:
    def function(x: torch.Tensor) -> Any:
        def inner(a: torch.Tensor) -> torch.Tensor:
            return while_loop(lambda j, a: j < 3, lambda j, a: (j + 1, a * 1.1 + j), (torch.tensor(0), a))[1]

        def body(i: torch.Tensor, a: torch.Tensor) -> Any:
            return i + 1, torch.cond(a.sum() > 20, lambda a: a - 7, inner, (a,))

        return while_loop(lambda i, a: i < 6, body, (torch.tensor(0), x))

    agree(function, normal(3, 2), grads=False)


def test_scan_carries_and_stacks() -> None:
    def function(init: torch.Tensor, xs: torch.Tensor, w: torch.Tensor) -> Any:
        def step(carry: torch.Tensor, x: torch.Tensor) -> Any:
            following = torch.tanh(carry @ w + x)
            return following, following.sum(0) * 2

        return scan(step, init, xs)

    agree(function, normal(4, 6), normal(9, 4, 6), normal(6, 6))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_along_any_dimension_in_both_directions(dim: int, reverse: bool) -> None:
    def function(xs: torch.Tensor) -> Any:
        return scan(lambda c, x: (c * 0.5 + x, c + x.sin()), xs.select(dim, 0) * 2, xs, dim=dim, reverse=reverse)

    agree(function, normal(5, 5))


def test_scan_of_one_row_and_of_several_tensors() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> Any:
        return scan(lambda c, x: ((c[0] + x[0], c[1] * x[1]), (c[0] * 2, x[1] + 1)), (a[0], b[0]), (a, b))

    agree(function, normal(1, 3), normal(1, 2, 2))
    agree(function, normal(7, 3), normal(7, 2, 2))


def test_map_runs_its_body_on_each_row() -> None:
    def function(xs: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return map(lambda row, w: (row @ w).softmax(-1), xs, w)

    agree(function, normal(5, 3, 4), normal(4, 6))


def test_associative_scan_joins_neighbours() -> None:
    def function(x: torch.Tensor, decay: torch.Tensor) -> Any:
        def join(left: Any, right: Any) -> Any:
            return left[0] * right[0], left[1] * right[0] + right[1]

        return associative_scan(join, (decay.sigmoid(), x), 0, combine_mode="generic")

    agree(function, normal(11, 3), normal(11, 3))


def test_sizes_that_change_from_call_to_call() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda a: a.sin() * 2, lambda a: a.cos(), (x,))

    torch._dynamo.reset()
    changing = torch.compile(function, backend="ipu", dynamic=True)
    for size in (3, 8, 5):
        x = normal(size, 4)
        torch.testing.assert_close(changing(x), function(x))


# --------------------------------------------------------------------------- programs of a whole step
class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def step(carry: torch.Tensor, row: torch.Tensor) -> Any:
            following = torch.tanh(self.first(carry) + row)
            return following, following * 2

        last, all_of_them = scan(step, torch.zeros_like(x[0]), x)
        chosen = torch.cond(last.sum() > 0, lambda a: a.sin(), lambda a: a * 3, (last,))
        return self.second(chosen + all_of_them.mean(0)).square().mean()


@TRAINED_SCANS
def test_training_steps_through_control_flow_follow_eager() -> None:
    torch.manual_seed(0)
    model = Gated()
    twin = Gated().double()
    twin.load_state_dict(model.state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torchipu.TrainStep(model, optimiser)
    theirs = torch.optim.SGD(twin.parameters(), lr=0.1)
    for number in range(4):
        x = normal(5, 3, 6) + number - 2
        loss = step(x)
        theirs.zero_grad()
        wanted = twin(x.double())
        wanted.backward()
        theirs.step()
        torch.testing.assert_close(torch.as_tensor(loss).double().reshape(()), wanted.detach(), rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------- draws
def test_each_trip_draws_anew() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return while_loop(
            lambda i, a: i < 4, lambda i, a: (i + 1, torch.cat([a[100:], torch.rand(100)])), (torch.tensor(0), x),
        )[1]

    drawn = compiled(function)(torch.zeros(400)).reshape(4, 100)
    for trip in range(4):
        assert 0.3 < drawn[trip].mean() < 0.7
        for other in range(trip):
            assert not torch.equal(drawn[trip], drawn[other])


# --------------------------------------------------------------------------- refusals
def test_gradient_of_a_while_loop_is_refused_with_a_way_out() -> None:
    x = normal(3).requires_grad_()

    def function(x: torch.Tensor) -> Any:
        return while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5), (torch.tensor(0), x))[1]

    with pytest.raises(BackendCompilerFailed, match=r"UnsupportedOpError: while_loop") as caught:
        compiled(function)(x)
    assert "use scan" in str(caught.value)
    assert "test_control_flow.py" in str(caught.value)
