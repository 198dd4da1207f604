"""Replicas within one process: the same training as one model, order of inputs and outputs, own buffers and bits."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchipu
from torchipu.errors import ConstraintError, OptionsError, PlacementError
from torchipu.ir.program import AllReduce

UPDATES, GLOBAL_BATCH = 100, 32


class Regressor(nn.Module):
    """Returns its prediction ``[N, 5]`` and the mean squared error."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(torch.tanh(self.body(x)))
        return found, nn.functional.mse_loss(found, y)


class Echo(nn.Module):
    """Returns its input, changed so that something is left to compute."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Normalised(nn.Module):
    """Has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x)).square().mean()


def data(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(size, 6, generator=generator), torch.randn(size, 5, generator=generator)


def trained(
    dtype: torch.dtype = torch.float32, **options: object,
) -> tuple[torch.Tensor, torch.Tensor, torchipu.TrainStep]:
    """Train once over all data in one call; return predictions, losses ``[updates, runs]`` and the step."""
    model = Regressor().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = torchipu.TrainStep(
        model, optimizer, torchipu.Options(device_iterations=UPDATES, output_mode="all", **options),
    )
    found, losses = step(*(value.to(dtype) for value in data(UPDATES * GLOBAL_BATCH)))
    return found, losses.reshape(UPDATES, -1), step


@pytest.fixture(scope="module")
def eager() -> tuple[torch.Tensor, nn.Module]:
    """Losses and weights of eager PyTorch in float64, one update for each global batch."""
    model = Regressor().double()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    x, y = data(UPDATES * GLOBAL_BATCH)
    for inputs, wanted in zip(x.double().split(GLOBAL_BATCH), y.double().split(GLOBAL_BATCH), strict=True):
        optimizer.zero_grad()
        _, loss = model(inputs, wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), model


@pytest.mark.parametrize("replicas", [1, 2, 4, 8, 16])
def test_training_curves_are_the_same_for_any_number_of_replicas(
    replicas: int, eager: tuple[torch.Tensor, nn.Module],
) -> None:
    losses, model = eager
    _, found, step = trained(replicas=replicas)
    torch.testing.assert_close(found.double().mean(1), losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        step.model.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6, check_dtype=False,
    )


@pytest.mark.parametrize("replicas", [1, 2, 4, 8, 16])
def test_in_half_the_curves_are_the_same_up_to_a_few_roundings(
    replicas: int, eager: tuple[torch.Tensor, nn.Module],
) -> None:
    losses, model = eager
    _, found, step = trained(torch.half, replicas=replicas)
    # Each rounding to half is half a unit in the last of 11 bits; weights, gradients and losses are rounded.
    rounding = 2.0**-11
    torch.testing.assert_close(found.double().mean(1), losses, rtol=4 * rounding, atol=0)
    torch.testing.assert_close(
        step.model.state_dict(), model.state_dict(), rtol=4 * rounding, atol=4 * rounding, check_dtype=False,
    )


def test_replicas_are_the_accumulation_of_their_micro_batches_up_to_the_order_of_the_sum() -> None:
    predictions, losses, step = trained(gradient_accumulation=8)
    for replicas in (2, 8):
        other = trained(gradient_accumulation=8 // replicas, replicas=replicas)
        torch.testing.assert_close(other[0], predictions, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other[1], losses)
        torch.testing.assert_close(other[2].model.state_dict(), step.model.state_dict())


def test_gradients_of_replicas_are_added_up_in_pairs() -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.weight * x).sum()

    # In float32 the order of these additions shows: ((0 + 1) + (2 + 3)) + (4 + 5).
    terms = torch.tensor([2.0**24, 1.0, 1.0, -2.0**24, 0.3, 0.7])
    model = Weighted()
    options = torchipu.Options(replicas=6, accumulation_reduction="sum")
    torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), options)(terms)
    pairs = terms[::2] + terms[1::2]
    assert -model.weight.item() == ((pairs[0] + pairs[1]) + pairs[2]).item()
    one_by_one = torch.zeros(())
    for term in terms:
        one_by_one += term
    assert -model.weight.item() != one_by_one.item()


def test_weights_with_one_gradient_are_added_up_once() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ((self.one + self.other) * x).sum()

    for accumulation in (1, 2):
        model, x = Twins(), torch.arange(24.0).reshape(8, 3)[: 4 * accumulation]
        options = torchipu.Options(replicas=4, gradient_accumulation=accumulation, accumulation_reduction="sum")
        torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), options)(x)
        assert torch.equal(model.one, -x.sum(0))
        assert torch.equal(model.other, 1 - x.sum(0))


def test_gradients_are_summed_over_replicas_where_the_options_say_so() -> None:
    model = Regressor()
    twin = copy.deepcopy(model)
    x, y = data(8)
    options = torchipu.Options(replicas=4, accumulation_reduction="sum")
    torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.01), options)(x, y)
    sum(twin(*pair)[1] for pair in zip(x.split(2), y.split(2), strict=True)).backward()  # type: ignore[union-attr]
    torch.optim.SGD(twin.parameters(), lr=0.01).step()
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize(("mode", "period", "rows", "losses"), [
    ("final", 1, 4, 2), ("all", 1, 48, 24), ("sum", 1, 4, 2), ("every_n", 3, 16, 8),
])
def test_every_replica_returns_its_results(mode: str, period: int, rows: int, losses: int) -> None:
    model = Regressor()
    options = torchipu.Options(
        replicas=2, gradient_accumulation=4, device_iterations=3, output_mode=mode, output_period=period,
    )
    found, loss = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), options)(*data(48))
    every, loss_of_each = Regressor()(*data(48))[0], [Regressor()(*pair)[1].item() for pair in _pairs(48, 2)]
    wanted = {
        "final": (every[-4:], loss_of_each[-2:]), "all": (every, loss_of_each),
        "every_n": (every[-16:], loss_of_each[-8:]),
        "sum": (every.reshape(12, 4, 5).sum(0), torch.tensor(loss_of_each).reshape(12, 2).sum(0)),
    }[mode]
    assert (tuple(found.shape), tuple(loss.shape)) == ((rows, 5), (losses,))
    torch.testing.assert_close(found, wanted[0])
    torch.testing.assert_close(loss, torch.as_tensor(wanted[1]))


def _pairs(size: int, micro: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    x, y = data(size)
    return list(zip(x.split(micro), y.split(micro), strict=True))


@pytest.mark.parametrize(("grouping", "order"), [
    ("consecutive", [0, 0, 1, 1, 2, 2, 3, 3]), ("orthogonal", [0, 1, 0, 1, 2, 3, 2, 3]),
])
def test_replicas_of_a_group_read_the_same_inputs(grouping: str, order: list[int]) -> None:
    options = torchipu.Options(replicas=4, input_group_size=2, input_grouping=grouping, device_iterations=2)
    x = torch.arange(12.0).reshape(4, 3)
    found = torchipu.InferenceStep(Echo(), options)(x)
    assert torch.equal(found, x[order] + 1)


def test_every_replica_draws_bits_of_its_own() -> None:
    class Dropping(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x, 0.5, training=True)

    step = torchipu.InferenceStep(Dropping(), torchipu.Options(replicas=4, device_iterations=2, seed=3))
    rows = step(torch.ones(8, 256)).bool()
    assert len({tuple(row) for row in rows.tolist()}) == 8
    alone = torchipu.InferenceStep(Dropping(), torchipu.Options(device_iterations=2, seed=3))
    assert torch.equal(alone(torch.ones(2, 256)).bool(), rows[::4]), "replica 0 draws what one model draws"


def test_each_replica_keeps_its_own_statistics() -> None:
    model = Normalised()
    alone = [copy.deepcopy(model) for _ in range(2)]
    x = torch.randn(3 * 2 * 2 * 4, 6)
    options = torchipu.Options(replicas=2, gradient_accumulation=2, broadcast_buffers=False)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.0), options)
    for call in x.split(16):
        step(call)
    for piece, run in enumerate(x.split(4)):
        alone[piece % 2](run)
    stacked = {name: torch.stack([one.get_buffer(name) for one in alone]) for name, _ in model.named_buffers()}
    torch.testing.assert_close(step.replica_buffers(), stacked)
    torch.testing.assert_close(dict(model.named_buffers()), dict(alone[0].named_buffers()))
    step.compile(x[:32])
    torch.testing.assert_close(step.replica_buffers(), stacked, msg="another signature loses no statistics")
    with torch.no_grad():
        model.norm.running_mean.fill_(7)
    step(x[:16])
    wanted = torch.stack([torch.full((6,), 7.0)] * 2)
    for piece, run in enumerate(x[:16].split(4)):
        wanted[piece % 2] = 0.9 * wanted[piece % 2] + 0.1 * run.mean(0)
    torch.testing.assert_close(step.replica_buffers()["norm.running_mean"], wanted)


# --------------------------------------------------------------------------- the machine
def test_gradients_travel_between_replicas_before_the_update() -> None:
    model = Regressor()
    options = torchipu.Options(replicas=4, gradient_accumulation=2)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
    step.compile(*data(16))
    (reduced,) = step.compiled.executable.functions["R0"].body  # type: ignore[union-attr]
    assert isinstance(reduced, AllReduce)
    num_bytes = sum(4 * parameter.numel() for parameter in model.parameters())
    assert (reduced.replicas, sum(v.device_bytes for v in reduced.variables)) == (4, num_bytes)
    labels = [span.action for span in step.compiled.cost.timeline.spans_by_ipu[0]]
    assert labels[-2:] == ["R0", "U0"]
    assert "4 replicas of 1 IPU" in step.profile.summary()


def test_weights_are_held_once_on_the_host() -> None:
    sizes = []
    for replicas in (2, 16):  # one replica, and one micro-batch, need no accumulators
        model = Regressor()
        step = torchipu.TrainStep(model, torch.optim.Adam(model.parameters()), torchipu.Options(replicas=replicas))
        step.compile(*data(16 * replicas))
        assert step._bound is not None
        sizes.append((step._bound.state.numel(), sum(view.nbytes for view in step._bound.placed_states.views)))
    assert sizes[0] == sizes[1]


# --------------------------------------------------------------------------- refusals
def test_replicas_that_do_not_divide_the_batch_are_named() -> None:
    with pytest.raises(ConstraintError, match=r"batch of 10 is not divisible by .* x replicas 4 = 4"):
        torchipu.InferenceStep(Echo(), torchipu.Options(replicas=4))(torch.ones(10, 3))


def test_more_replicas_than_the_machine_has_ipus_are_refused() -> None:
    with pytest.raises(PlacementError, match="65 replicas of the model need 65 IPUs"):
        torchipu.InferenceStep(Echo(), torchipu.Options(replicas=65))(torch.ones(65, 3))


def test_a_written_buffer_needs_buffers_that_are_not_broadcast() -> None:
    model = Normalised()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(replicas=2))
    with pytest.raises(OptionsError, match=r"writes buffer 'norm.running_mean' and 2 more.*broadcast_buffers=True"):
        step(torch.randn(8, 6))


def test_a_group_of_inputs_divides_the_replicas() -> None:
    with pytest.raises(OptionsError, match="input_group_size=3 does not divide replicas=4"):
        torchipu.Options(replicas=4, input_group_size=3)
