"""What the forward saves for the backward: parts of values that are kept anyway, and what calls repeat, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy

from torchipu.capture.joint_graph import BACKWARD_TAGS
from torchipu.capture.repeated_nodes import merge_repeated

Function = Callable[..., torch.Tensor]
STEPS, WIDTH = 7, 6


def by_steps(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A recurrence whose steps read the input's."""
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(h * w + x[:, t] * w)
    return h


def by_steps_of_a_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return by_steps(x * x, w)


def by_one_step_of_a_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * x)[:, 2] * w.exp()


def by_halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    gate, value = (x * w).chunk(2, -1)
    return torch.sigmoid(gate) * value


def by_columns(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    first, *_, last = x.unbind(1)
    return first * last * w


def by_decay(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = h * torch.exp(-w) + x[:, t]
    return h


SAVED: dict[str, tuple[Function, int]] = {  # elements that are saved: at most so many
    "steps of an input": (by_steps, (2 * STEPS + 1) * WIDTH * 3 + WIDTH),
    "steps of a product": (by_steps_of_a_product, (3 * STEPS + 1) * WIDTH * 3 + WIDTH),
    "a step of a product": (by_one_step_of_a_product, STEPS * WIDTH * 3 + 3 * WIDTH + WIDTH),
    "halves": (by_halves, 3 * STEPS * WIDTH * 3),
    "columns of an input": (by_columns, 2 * STEPS * WIDTH * 3),
    "a decay": (by_decay, STEPS * WIDTH * 3 + 2 * WIDTH),
}


def drawn() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(3, STEPS, WIDTH), torch.randn(WIDTH)]


def saved_by(function: Function, given: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the result and what the backward is given."""
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = torch.compile(function, backend="ipu")(*given)
    return result, saved


@pytest.mark.parametrize("name", SAVED)
def test_values_that_are_kept_anyway_are_not_saved_in_parts(name: str) -> None:
    function, most = SAVED[name]
    given = [each.requires_grad_() for each in drawn()]
    result, saved = saved_by(function, given)
    assert 0 < sum({each.data_ptr(): each.numel() for each in saved}.values()) <= most
    shown = [each for each in saved if each._is_view()]
    assert not shown
    result.square().sum().backward()
    exact = [each.double().requires_grad_() for each in drawn()]
    function(*exact).square().sum().backward()
    for mine, right in zip(given, exact, strict=True):
        assert mine.grad is not None
        assert right.grad is not None
        torch.testing.assert_close(mine.grad.double(), right.grad, rtol=1e-5, atol=1e-5)


def test_a_decay_is_saved_once() -> None:
    given = [each.requires_grad_() for each in drawn()]
    _, saved = saved_by(by_decay, given)
    assert sum(each.shape == (WIDTH,) for each in saved) <= 2


def test_an_input_of_which_the_backward_reads_a_step_is_saved_as_it_is() -> None:
    x, w = (each.requires_grad_() for each in drawn())
    _, saved = saved_by(lambda x, w: x[:, 2] * w, [x, w])
    assert sorted((each.data_ptr(), each.shape) for each in saved) == sorted((v.data_ptr(), v.shape) for v in (x, w))


def test_an_input_whose_steps_are_saved_may_not_be_written_before_the_backward() -> None:
    x, w = drawn()
    result = torch.compile(by_steps, backend="ipu")(x, w.requires_grad_())
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_results_that_are_alike_are_tensors_of_their_own() -> None:
    x = drawn()[0].requires_grad_()
    first, second = torch.compile(lambda x: (x.sin() * 2, x.sin() * 2), backend="ipu")(x)
    assert torch.equal(first, second)
    with torch.no_grad():
        first.zero_()
    assert not torch.equal(first, second)
    second.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_draws_are_not_merged() -> None:
    torch.manual_seed(0)
    x = torch.ones(64, requires_grad=True)
    first, second = torch.compile(lambda x: (F.dropout(x * 2), F.dropout(x * 2)), backend="ipu")(x)
    assert not torch.equal(first, second)


def test_numbers_that_are_equal_but_not_the_same_are_apart() -> None:
    x = torch.ones(5, requires_grad=True)
    first, second = torch.compile(lambda x: (x * 0.0, x * -0.0), backend="ipu")(x)
    assert not first.signbit().any()
    assert second.signbit().all()


def test_calls_with_other_arguments_are_apart() -> None:
    x = drawn()[0].requires_grad_()

    def calls(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = x.detach() > 0
        summed = torch.add(x, x), torch.add(x, x, alpha=2)
        return *summed, F.gelu(x), F.gelu(x, approximate="tanh"), mask * 1, mask * True

    found, exact = torch.compile(calls, backend="ipu")(x), calls(x.detach().double())
    assert [each.dtype for each in found[-2:]] == [torch.int64, torch.bool]
    for mine, right in zip(found, exact, strict=True):
        assert (mine.double() - right.double()).abs().max() <= 1e-6


def test_blocks_and_the_backward_compute_their_own() -> None:
    """What two stages compute alike neither waits for; what the backward computes again is not to be saved."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(torch.ops.aten.exp.default, (x,)) for _ in range(6)]
    for node, custom in zip(made, ({"a": [1, 2]}, {"a": [1, 2]}, {"a": [1, 3]}, {}, {}, {}), strict=True):
        node.meta.update(custom=custom, val=torch.zeros(2))
    made[4].meta["partitioner_tag"] = BACKWARD_TAGS[0]
    made[5].meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    graph.output(tuple(made))
    joint = torch.fx.GraphModule(torch.nn.Module(), graph)
    merge_repeated(joint, BACKWARD_TAGS)
    (returned,) = next(node for node in joint.graph.nodes if node.op == "output").args
    assert list(returned) == [made[0], made[0], made[2], made[3], made[4], made[5]]
