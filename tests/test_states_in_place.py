"""Steps work on the user's weights and optimiser states where they lie."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
from torchipu.host.bound_plan import BoundPlan
from torchipu.step.running import RunningStep


class Regression(nn.Module):
    """Layers with a buffer that training writes, and the loss of `[N, 6]` and `[N, 3]`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error."""
        return nn.functional.mse_loss(self.last(torch.tanh(self.norm(self.first(x)))), y)


def drawn(samples: int = 8, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 6, generator=generator), torch.randn(samples, 3, generator=generator)


class Pair:
    """A model that a step trains, and the same one trained by eager PyTorch in float64."""

    def __init__(self, iterations: int = 1, **options: Any) -> None:
        torch.manual_seed(3)
        self.model = Regression()
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.judge = copy.deepcopy(self.model).double()
        self.judging = torch.optim.Adam(self.judge.parameters(), lr=0.01)
        self.iterations = iterations
        chosen = torchipu.Options(device_iterations=iterations, **options)
        self.step = torchipu.TrainStep(self.model, self.optimiser, chosen)

    def judge_step(self, seed: int) -> None:
        """Let eager PyTorch alone make the steps of a call."""
        x, y = drawn(8 * self.iterations, seed)
        for inputs, targets in zip(x.double().split(8), y.double().split(8), strict=True):
            self.judging.zero_grad()
            self.judge(inputs, targets).backward()
            self.judging.step()

    def call(self, seed: int) -> None:
        """Make the steps of a call, both."""
        self.step(*drawn(8 * self.iterations, seed))
        self.judge_step(seed)

    def agree(self) -> None:
        """Compare weights, buffers and moments."""
        for ours, theirs in zip(self.model.state_dict().values(), self.judge.state_dict().values(), strict=True):
            torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5)
        for one, other in zip(self.model.parameters(), self.judge.parameters(), strict=True):
            for name, ours in self.optimiser.state[one].items():
                theirs = self.judging.state[other][name]
                torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-6)

    @property
    def copied(self) -> set[str]:
        """Weights and buffers of which the program has a copy, by name."""
        held = {value.data_ptr() for value in self.step.states_on_device().values()}
        own = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        return {name for name, tensor in own.items() if tensor.data_ptr() not in held}

    @property
    def is_in_place(self) -> bool:
        """Whether the program's states are the user's tensors."""
        return not self.copied

    def turn(self) -> None:
        """Let the columns of a weight lie one by one, so that the program has a copy of it."""
        weight = self.model.first.weight
        weight.data = weight.data.t().contiguous().t()


@pytest.mark.parametrize("iterations", [1, 3])
def test_weights_buffers_and_moments_are_where_the_user_has_them(iterations: int) -> None:
    pair = Pair(iterations)
    places = [parameter.data_ptr() for parameter in pair.model.parameters()]
    versions = [parameter._version for parameter in pair.model.parameters()]
    for seed in range(3):
        pair.call(seed)
    pair.agree()
    assert pair.is_in_place
    assert [parameter.data_ptr() for parameter in pair.model.parameters()] == places
    assert all(now._version > before for now, before in zip(pair.model.parameters(), versions, strict=True))


def test_a_graph_of_eager_pytorch_sees_that_its_weights_were_written() -> None:
    pair = Pair()
    pair.call(0)
    x, y = drawn()
    loss = pair.model(x, y)
    pair.step(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_memory_may_change_between_calls() -> None:
    pair = Pair()
    pair.call(0)
    with torch.no_grad():
        for model in (pair.model, pair.judge):
            model.first.weight.data = model.first.weight.data * 0.5
    pair.call(1)
    pair.agree()
    assert pair.is_in_place
    pair.turn()
    for seed in (2, 4):
        pair.call(seed)
        pair.agree()
        assert pair.copied == {"first.weight"}
    pair.model.first.weight.data = pair.model.first.weight.data.contiguous()
    pair.call(3)
    pair.agree()
    assert pair.is_in_place


def test_a_value_that_the_user_writes_is_taken() -> None:
    pair = Pair()
    pair.call(0)
    with torch.no_grad():
        for model in (pair.model, pair.judge):
            model.last.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
            model.first.weight.data.mul_(0.5)  # torch does not count this write
    pair.call(1)
    pair.agree()


def test_weights_that_share_memory_are_no_place_to_work() -> None:
    torch.manual_seed(3)
    both = torch.randn(20)

    class Overlapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Parameter(both[:12]), nn.Parameter(both[8:])
            self.alone = nn.Parameter(torch.ones(12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((x * self.one).sum() + (x * self.other).sum() * 2 + (x * self.alone).sum()) ** 2

    model = Overlapping()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    step(torch.ones(1, 12))
    held = {value.data_ptr() for value in step.states_on_device().values()}
    assert held & {parameter.data_ptr() for parameter in model.parameters()} == {model.alone.data_ptr()}


@pytest.mark.parametrize("iterations", [1, 3])
def test_only_weights_that_lie_otherwise_are_copied(iterations: int) -> None:
    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.norm(self.first(x))).mean((2, 3))).square().mean()

    torch.manual_seed(0)
    model = Images().to(memory_format=torch.channels_last)
    judge = copy.deepcopy(model).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    judging = torch.optim.Adam(judge.parameters(), lr=0.01)
    step = torchipu.TrainStep(model, optimiser, torchipu.Options(device_iterations=iterations))
    for _ in range(3):
        x = torch.randn(4 * iterations, 3, 6, 6)
        step(x)
        for part in x.double().split(4):
            judging.zero_grad()
            judge(part).backward()
            judging.step()
    for ours, theirs in zip(model.state_dict().values(), judge.state_dict().values(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5)
    assert model.first.weight.is_contiguous(memory_format=torch.channels_last)
    held = {value.data_ptr() for value in step.states_on_device().values()}
    assert [name for name, one in model.named_parameters() if one.data_ptr() not in held] == ["first.weight"]


@pytest.mark.parametrize("first", [6, 1, 11], ids=["the weight", "ends in it", "begins in it"])
def test_an_argument_in_the_memory_of_a_weight_keeps_the_value_that_it_came_with(first: int) -> None:
    memory = torch.arange(18.0)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(memory[6:12].view(6, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.weight.t()).sum()

    model = Product()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=1.0), torchipu.Options(device_iterations=3, output_mode="all"),
    )
    argument = memory[first : first + 6].view(6, 1)
    x, weight, expected = argument.clone().reshape(3, 2), memory[6:12].clone(), []
    losses = step(argument)
    for pair in x:
        expected.append(float(pair.sum() * weight.sum()))
        weight = weight - pair.sum()
    assert losses.tolist() == expected
    assert model.weight.flatten().tolist() == weight.tolist()
    assert memory.data_ptr() + 24 == model.weight.data_ptr() == next(iter(step.states_on_device().values())).data_ptr()


@pytest.mark.parametrize("has_copies", [False, True])
def test_an_interrupt_behind_the_only_update_leaves_the_step_made(
    monkeypatch: pytest.MonkeyPatch, has_copies: bool,
) -> None:
    pair = Pair()
    if has_copies:
        pair.turn()
    run = BoundPlan._run

    def interrupted(self: BoundPlan, *arguments: Any) -> None:
        run(self, *arguments)
        raise KeyboardInterrupt

    for seed in range(2):  # the states of the optimiser are new at the first call
        with monkeypatch.context() as patched:
            patched.setattr(BoundPlan, "_run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                pair.step(*drawn(8, seed))
        pair.judge_step(seed)
        pair.agree()
    pair.call(2)
    pair.agree()


@pytest.mark.parametrize("name", ["_finish", "_download"])
@pytest.mark.parametrize("iterations", [1, 3])
def test_an_interrupt_behind_all_updates_leaves_the_steps_made(
    monkeypatch: pytest.MonkeyPatch, iterations: int, name: str,
) -> None:
    pair = Pair(iterations)
    pair.turn()
    pair.call(0)
    whole = getattr(RunningStep, name)
    interrupts = [KeyboardInterrupt]

    def interrupted(self: RunningStep) -> None:
        if interrupts:
            raise interrupts.pop()
        whole(self)

    with monkeypatch.context() as patched:
        patched.setattr(RunningStep, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.step(*drawn(8 * iterations, 1))
    pair.judge_step(1)
    pair.agree()
    pair.call(2)
    pair.agree()


@pytest.mark.parametrize("has_copies", [False, True])
def test_an_interrupt_among_several_updates_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, has_copies: bool,
) -> None:
    pair = Pair(3)
    if has_copies:
        pair.turn()
    pair.call(0)
    run = BoundPlan._run

    def interrupted(self: BoundPlan, *arguments: Any) -> None:
        run(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BoundPlan, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.step(*drawn(24, 1))
    pair.agree()
    pair.call(2)
    pair.agree()


@pytest.mark.parametrize("has_copies", [False, True])
def test_a_refused_value_leaves_all_as_it_was(has_copies: bool) -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm, self.last = nn.Embedding(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)

        def forward(self, places: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(self.last.weight * 0.5 + self.table(places))).mean()

    torch.manual_seed(0)
    model = Embedded()
    if has_copies:
        model.table.weight.data = model.table.weight.data.t().contiguous().t()
    optimiser = torch.optim.Adam(model.parameters())
    step = torchipu.TrainStep(model, optimiser)
    step(torch.tensor([0, 1, 2]))
    before = copy.deepcopy((model.state_dict(), optimiser.state_dict()["state"]))
    with pytest.raises(torchipu.ExecutionError, match="index"):
        step(torch.tensor([0, 1, 9]))
    torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)
    torch.testing.assert_close(optimiser.state_dict()["state"], before[1], rtol=0, atol=0)
    step(torch.tensor([0, 1, 4]))


def test_inference_sees_what_is_written_to_weights_that_it_copies_or_not() -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).requires_grad_(False)
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    shown = torchipu.InferenceStep(model)
    x = torch.randn(4, 5)
    for place in (None, 0, 2, None):
        if place is not None:
            model[place].weight.mul_(-0.5)
        for _ in range(2):  # the second call finds all as it was
            torch.testing.assert_close(shown(x), model(x), rtol=1e-5, atol=1e-6)


def test_inference_reads_the_weights_that_training_writes() -> None:
    pair = Pair()
    shown = torchipu.InferenceStep(pair.model.last)
    x = drawn(4)[0].repeat(1, 3)[:, :16]
    for seed in range(2):
        pair.call(seed)
        torch.testing.assert_close(shown(x), pair.model.last(x).detach(), rtol=1e-5, atol=1e-6)
    held = shown.states_on_device().values()
    assert {value.data_ptr() for value in held} == {p.data_ptr() for p in pair.model.last.parameters()}


def test_an_interrupt_before_anything_runs_is_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    pair.call(0)
    versions = [parameter._version for parameter in pair.model.parameters()]

    def interrupted(self: BoundPlan, *arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BoundPlan, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pair.step(*drawn(8, 1))
    assert [parameter._version for parameter in pair.model.parameters()] == versions
    pair.call(2)
    pair.agree()
