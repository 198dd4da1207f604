"""Micro-batches and replicas side by side: values of one after another, no weights twice, and when there are none."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchipu
import torchipu.step.compiling
from torchipu._kernels.abi import Plan
from torchipu.host import lanes
from torchipu.host.lanes import Lanes

Made = tuple[list[torch.Tensor], torchipu.TrainStep]


class Convolutions(nn.Module):
    """Images, with dropout: every micro-batch of every replica draws bits of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop, self.head = nn.Conv2d(2, 4, 3), nn.Dropout(0.3), nn.Linear(4 * 36, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(self.drop(torch.relu(self.conv(x))).flatten(1))
        return found, nn.functional.cross_entropy(found, y)


class Normalised(Convolutions):
    """Has running statistics, which go from one micro-batch to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(self.norm(x), y)


class Words(nn.Module):
    """An embedding, whose gradient is scattered, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(5, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = (x.flatten(1)[:, :12].abs() * 4).long().clamp(max=4)
        hidden = torch.tanh(self.body(nn.functional.layer_norm(self.body(self.words(tokens)), (16,))))
        found = hidden.mean(1) @ self.words.weight.t()
        return found, nn.functional.cross_entropy(found, y)


def made(
    make: Callable[[], nn.Module], runs: int, *, micro: int = 2, is_half: bool = False, **options: object,
) -> Made:
    """Train two updates with micro-batches of ``micro``; return results, weights, buffers and optimiser states."""
    torch.manual_seed(0)
    model = make()
    x, y = torch.randn(2 * micro * runs, 2, 8, 8), torch.randint(0, 5, (2 * micro * runs,))
    if is_half:
        model, x = model.half(), x.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = torchipu.TrainStep(model, optimizer, torchipu.Options(
        device_iterations=2, seed=3, broadcast_buffers=False, **options,  # type: ignore[arg-type]
    ))
    found = [*step(x, y), *model.parameters(), *model.buffers()]
    found += [value for state in optimizer.state.values() for value in state.values() if value is not None]
    return [value.detach().clone() for value in [*found, *step.replica_buffers().values()]], step


@pytest.mark.parametrize("make", [Convolutions, Normalised, Words])
@pytest.mark.parametrize(("accumulation", "replicas", "mode"), [
    (7, 1, "final"), (1, 8, "all"), (5, 3, "final"),
])
def test_values_are_those_of_one_after_another(
    make: Callable[[], nn.Module], accumulation: int, replicas: int, mode: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"gradient_accumulation": accumulation, "replicas": replicas, "output_mode": mode}
    runs = accumulation * replicas
    monkeypatch.setattr(torchipu.step.compiling, "choose_lanes", lambda *of: Lanes())
    wanted, _ = made(make, runs, host_threads=1, **options)
    monkeypatch.undo()
    for threads in (2, 3):
        found, step = made(make, runs, host_threads=threads, **options)
        assert step._bound is not None
        assert (step._bound.lanes.count > 1) == (make is not Normalised or replicas > 1)
        assert len(found) == len(wanted)
        assert all(map(torch.equal, found, wanted))


class Dense(nn.Module):
    """Linear layers whose products, and those of their gradients, are joined; of rows as wide as the images."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.wide, self.head = nn.Linear(128, 96), nn.Linear(96, 288), nn.Linear(288, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(torch.tanh(self.wide(torch.relu(self.body(x.flatten(1))))))
        return found, nn.functional.cross_entropy(found, y)


class Pooled(nn.Module):
    """Convolutions that end in a max-pool, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.third, self.head = nn.Conv2d(4, 3, 3), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(nn.functional.max_pool2d(self.second(torch.relu(self.first(x))), 2))
        found = self.head(self.third(x).flatten(1))
        return found, nn.functional.cross_entropy(found, y)


PRODUCTS = {"matmul", "matmul_dots"}
CONVOLUTIONS = {"conv_forward", "conv_max_pool", "sparse_conv_backward"}


@pytest.mark.parametrize(("make", "micro", "kernels"), [
    (Dense, 1, PRODUCTS), (Dense, 3, PRODUCTS), (Dense, 32, {"matmul"}), (Pooled, 3, CONVOLUTIONS),
    (Pooled, 4, CONVOLUTIONS),
])
@pytest.mark.parametrize(("accumulation", "replicas"), [(12, 1), (1, 9), (5, 2)])
def test_a_call_for_all_of_them_computes_what_each_would(
    make: Callable[[], nn.Module], micro: int, kernels: set[str], accumulation: int, replicas: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {
        "gradient_accumulation": accumulation, "replicas": replicas, "output_mode": "all", "micro": micro,
    }
    runs = accumulation * replicas
    found, step = made(make, runs, host_threads=2, **options)
    bound = step._bound
    assert bound is not None
    # Lanes of one replica keep both threads busy; lanes of several have accumulators of their own.
    assert bound.lanes == (Lanes(accumulation, 1) if accumulation > 1 else Lanes(1, replicas))
    joined = [at for at in bound.host_plan.steps if bound.layout.call_of(at) is not None]
    made_apart = {"matmul_dots", "sparse_conv_backward"} if accumulation == 1 else set()
    assert {at.kernel.name for at in joined if at.kernel is not None} >= kernels - made_apart
    assert any(at.adds_up for at in joined) == (accumulation > 1)
    monkeypatch.setattr(torchipu.step.compiling, "choose_lanes", lambda *of: Lanes())
    wanted, _ = made(make, runs, host_threads=1, **options)
    assert all(map(torch.equal, found, wanted))


def test_inputs_that_replicas_share_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(64, 96).eval(), torch.randn(8 * 3, 64)
    options = torchipu.Options(
        replicas=8, input_group_size=2, input_grouping="orthogonal", device_iterations=2, host_threads=2,
    )
    found = torchipu.InferenceStep(model, options)(x)
    monkeypatch.setattr(torchipu.step.compiling, "choose_lanes", lambda *of: Lanes())
    assert torch.equal(found, torchipu.InferenceStep(model, options)(x))
    torch.testing.assert_close(found[:3], model(x[:3]))


def test_stochastic_rounding_draws_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"gradient_accumulation": 5, "replicas": 2, "stochastic_rounding": True, "is_half": True}
    found, step = made(Convolutions, 10, host_threads=2, **options)
    assert step._bound is not None
    assert step._bound.lanes == Lanes(5, 1)
    monkeypatch.setattr(torchipu.step.compiling, "choose_lanes", lambda *of: Lanes())
    wanted, _ = made(Convolutions, 10, host_threads=1, **options)
    assert all(map(torch.equal, found, wanted))


def test_inference_goes_side_by_side_too() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(40, 6)
    step = torchipu.InferenceStep(model, torchipu.Options(device_iterations=10, replicas=2, host_threads=2))
    torch.testing.assert_close(step(x), model(x))
    assert step._bound is not None
    assert step._bound.lanes == Lanes(10, 1)


def test_memory_grows_by_activations_only() -> None:
    bound = {runs: made(Convolutions, runs, host_threads=2, replicas=runs)[1]._bound for runs in (2, 8)}
    two, many = bound[2], bound[8]
    assert two is not None
    assert many is not None
    assert many.lanes == Lanes(1, 8)
    # Weights, what the optimiser keeps, and whatever depends on weights alone is there once for all of them.
    assert (many.state.numel(), many.prepared.numel()) == (two.state.numel(), two.prepared.numel())
    assert many.arena.numel() <= 4 * two.arena.numel()


def test_states_of_a_replica_go_from_one_micro_batch_to_the_next() -> None:
    _, step = made(Normalised, 12, host_threads=2, gradient_accumulation=4, replicas=3)
    assert step._bound is not None
    assert step._bound.lanes == Lanes(1, 3)


def test_large_programs_stay_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LARGE_BYTES", 64)
    _, step = made(Convolutions, 4, host_threads=2, gradient_accumulation=4)
    assert step._bound is not None
    assert step._bound.lanes == Lanes()


def test_a_bad_index_in_one_of_them_leaves_the_weights() -> None:
    torch.manual_seed(0)
    model = Convolutions()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(replicas=8, host_threads=2),
    )
    x, y = torch.randn(16, 2, 8, 8), torch.zeros(16, dtype=torch.int64)
    y[9] = 99
    with pytest.raises(torchipu.errors.ExecutionError, match="an index is out of range"):
        step(x, y)
    assert all(map(torch.equal, model.parameters(), before))
    step(x, torch.zeros(16, dtype=torch.int64))
    assert not any(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("beside", [(2, 3), (1, 3), (65, 1), (0, 1)])
def test_lanes_that_do_not_fit_the_replicas_are_refused(beside: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="lanes"):
        Plan(1).run((0, 0), (0, 0), (0, 0), 4, 1, 2, replicas=2, beside=beside)
