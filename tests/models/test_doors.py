"""What surrounds a model: states, tied weights, views, dropout, frozen parameters, groups, sizes, graph breaks, schedulers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchipu import InferenceStep, Options, TrainStep
from torchipu.backend import COUNTS


@pytest.fixture(autouse=True)
def fresh_dynamo():
    """Keep recompilations of one test from counting against the next."""
    torch._dynamo.reset()


class StepDoor:
    """Trains through one-Program steps."""

    def __init__(self, model, optimiser):
        self.step = TrainStep(model, optimiser)

    def __call__(self, *inputs):
        return self.step(*inputs)


class DynamoDoor:
    """Trains through torch.compile, backward and the optimiser of torch."""

    def __init__(self, model, optimiser, backend="ipu"):
        self.run = model if backend is None else torch.compile(model, backend=backend)
        self.optimiser = optimiser

    def __call__(self, *inputs):
        self.optimiser.zero_grad()
        outputs = self.run(*inputs)
        outputs[-1].backward()
        self.optimiser.step()
        return outputs


DOORS = pytest.mark.parametrize("door", [StepDoor, DynamoDoor], ids=["step", "compile"])


def compare(door, model, optimiser_of, batches, between=lambda optimiser, n: None):
    """Train twins through a door and in eager; compare what they return and what they hold after each step."""
    twin = copy.deepcopy(model)
    optimisers = optimiser_of(model), optimiser_of(twin)
    ours, theirs = door(model, optimisers[0]), DynamoDoor(twin, optimisers[1], backend=None)
    for number, batch in enumerate(batches):
        found, expected = ours(*batch), theirs(*batch)
        torch.testing.assert_close(
            [value.detach() for value in found], [value.detach() for value in expected], rtol=1e-4, atol=1e-5,
        )
        torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)
        for optimiser in optimisers:
            between(optimiser, number)
    return model, optimisers


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x, y):
        logits = self.head(F.relu(self.norm(self.conv(x))).mean((2, 3)))
        return logits, F.cross_entropy(logits, y)


def images(count, n=6):
    return [(torch.randn(n, 2, 6, 6), torch.randint(3, (n,))) for _ in range(count)]


@DOORS
def test_batch_norm_statistics_and_count_advance(door):
    model, _ = compare(door, Normed(), sgd, images(3))
    assert model.norm.num_batches_tracked.item() == 3
    assert model.norm.num_batches_tracked.dtype is torch.int64


def test_batch_norm_counts_every_micro_batch():
    model = Normed()
    TrainStep(model, sgd(model), Options(gradient_accumulation=2, device_iterations=3))(*images(1, 12)[0])
    assert model.norm.num_batches_tracked.item() == 6


@DOORS
def test_evaluation_leaves_statistics_alone(door):
    model = Normed().eval()
    compare(door, model, sgd, images(2))
    assert model.norm.num_batches_tracked.item() == 0


@DOORS
def test_switching_to_evaluation_and_back_is_followed(door):
    model = Normed()
    twin = copy.deepcopy(model)
    ours, theirs = door(model, sgd(model)), DynamoDoor(twin, sgd(twin), backend=None)
    for training, batch in zip((True, False, True), images(3), strict=True):
        for member, run in ((model, ours), (twin, theirs)):
            member.train(training)
            run(*batch)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-5)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x, y):
        logits = self.head(self.words(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


@DOORS
def test_tied_weights_stay_tied(door):
    batches = [(torch.randint(11, (2, 5)), torch.randint(11, (2, 5))) for _ in range(3)]
    model, _ = compare(door, Tied(), sgd, batches)
    assert model.head.weight is model.words.weight


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = self.linear(x)
        return h, h.t(), h[1:], h.view(-1), x, x[0], h.sum()


@DOORS
def test_views_and_aliased_outputs_have_eagers_values(door):
    compare(door, Views(), sgd, [(torch.randn(3, 4),) for _ in range(3)])


def test_an_output_that_is_written_changes_neither_input_nor_model():
    model = Views()
    optimiser = sgd(model)
    step = TrainStep(model, optimiser)
    x = torch.randn(3, 4)
    kept = x.clone()
    for output in step(x)[:6]:
        output.zero_()
    assert torch.equal(x, kept)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)
        self.first.weight.requires_grad_(False)

    def forward(self, x, y):
        logits = self.second(torch.tanh(self.first(x)))
        return logits, F.cross_entropy(logits, y)


def rows(count):
    return [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(count)]


@DOORS
def test_frozen_parameters_do_not_move(door):
    model = Frozen()
    before = model.first.weight.clone()
    compare(door, model, lambda m: torch.optim.AdamW(m.parameters(), lr=0.01), rows(3))
    assert torch.equal(model.first.weight, before)


@DOORS
def test_unfreezing_between_calls_is_followed(door):
    model = Frozen()
    step = door(model, torch.optim.SGD(model.parameters(), lr=0.1))
    (first, second) = rows(2)
    step(*first)
    model.first.weight.requires_grad_(True)
    before = model.first.weight.clone()
    step(*second)
    assert not torch.equal(model.first.weight, before)


def grouped(model):
    return torch.optim.AdamW(
        [{"params": model.first.parameters(), "lr": 0.1}, {"params": model.second.parameters(), "weight_decay": 0.0}],
        lr=0.001,
    )


@DOORS
def test_parameter_groups_keep_their_settings(door):
    compare(door, Frozen(), grouped, rows(3))


@DOORS
@pytest.mark.filterwarnings("error:.*lr_scheduler.step")
def test_a_learning_rate_scheduler_is_followed_without_compiling_again(door):
    schedulers = {}

    def scheduled(model):
        optimiser = sgd(model)
        schedulers[optimiser] = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.5)
        return optimiser

    before = COUNTS.programs
    _, (optimiser, _) = compare(door, Frozen(), scheduled, rows(4), lambda optimiser, n: schedulers[optimiser].step())
    assert optimiser.param_groups[0]["lr"] == pytest.approx(0.05 / 16)
    assert COUNTS.programs - before == (2 if door is DynamoDoor else 0)


@DOORS
def test_weights_and_optimiser_state_can_be_saved_and_loaded(door):
    model = Frozen()
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01)
    step = door(model, optimiser)
    batches = rows(4)
    for batch in batches[:2]:
        step(*batch)
    saved = copy.deepcopy((model.state_dict(), optimiser.state_dict()))
    after = [step(*batch)[-1].item() for batch in batches[2:]]
    model.load_state_dict(saved[0])
    optimiser.load_state_dict(saved[1])
    assert [step(*batch)[-1].item() for batch in batches[2:]] == after


def test_parameters_put_in_place_of_others_are_not_ignored():
    model = Frozen()
    step = InferenceStep(model)
    x, y = rows(1)[0]
    step(x, y)
    with torch.no_grad():
        model.load_state_dict({name: torch.zeros_like(value) for name, value in model.state_dict().items()}, assign=True)
    assert torch.count_nonzero(step(x, y)[0]) == 0


# ---------------------------------------------------------------------- dropout
class Dropping(nn.Module):
    def __init__(self, p=0.25):
        super().__init__()
        self.p = p
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        kept = F.dropout(x, self.p) * self.weight
        return kept, kept.sum()


def dropped(seed, **options):
    """Return what two micro-batches of one call keep, then those of the next call."""
    model = Dropping()
    step = TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0),
        Options(seed=seed, gradient_accumulation=2, output_mode="all", **options),
    )
    x = torch.ones(2 * 50, 200)
    return torch.cat([step(x)[0], step(x)[0]]).view(4, 50, 200)


def test_dropout_draws_anew_for_each_micro_batch_and_repeats_for_a_seed():
    first = dropped(3)
    assert all(not torch.equal(first[a], first[b]) for a in range(4) for b in range(a))
    assert torch.equal(first, dropped(3))
    assert torch.equal(first, dropped(3, host_threads=1))
    assert not torch.equal(first, dropped(4))


def test_dropout_keeps_the_mean_and_the_share():
    kept = dropped(3)
    torch.testing.assert_close(kept.unique(), torch.tensor([0.0, 1 / 0.75]))
    share = (kept != 0).float().mean().item()
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / kept.numel()) ** 0.5


@DOORS
def test_dropout_without_a_seed_follows_torchs_generator(door):
    x = torch.ones(20, 20)
    model = Dropping()
    run = door(model, torch.optim.SGD(model.parameters(), lr=0.0))
    run(x)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(run(x)[0].detach().clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@DOORS
def test_dropped_elements_have_no_gradient_and_kept_ones_are_scaled(door):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(40, 40))

        def forward(self, x):
            kept = F.dropout(x + self.weight, 0.5)
            return kept, kept.sum()

    model = Scaled()
    kept, _ = door(model, torch.optim.SGD(model.parameters(), lr=1.0))(torch.ones(40, 40))
    # One update with rate 1 leaves minus the gradient, which is what dropout made of a one.
    assert torch.equal(-model.weight.detach(), kept.detach())


# ---------------------------------------------------------------------- the Dynamo door alone
def test_an_input_written_in_place_is_written_while_training():
    linear = nn.Linear(3, 3)

    def forward(x, history):
        y = linear(x)
        history.add_(y.detach())
        return y.sum()

    run = torch.compile(forward, backend="ipu")
    x, history = torch.randn(2, 3), torch.zeros(2, 3)
    run(x, history).backward()
    run(x, history).backward()
    torch.testing.assert_close(history, 2 * linear(x).detach())
    torch.testing.assert_close(linear.bias.grad, torch.full((3,), 4.0))


def test_a_graph_break_trains_as_eager_does():
    class Breaking(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x, y):
            h = torch.tanh(self.first(x))
            torch._dynamo.graph_break()
            logits = self.second(h)
            return logits, F.cross_entropy(logits, y)

    before = COUNTS.graphs
    compare(DynamoDoor, Breaking(), sgd, rows(3))
    assert COUNTS.graphs == before + 2


def test_the_last_smaller_batch_of_an_epoch_trains_as_in_eager():
    sizes = (6, 6, 4, 6, 5)
    compare(DynamoDoor, Frozen(), sgd, [(torch.randn(n, 4), torch.randint(3, (n,))) for n in sizes])


def test_a_step_is_compiled_again_for_another_batch_size():
    compare(StepDoor, Frozen(), sgd, [(torch.randn(n, 4), torch.randint(3, (n,))) for n in (6, 4, 6)])


def test_inference_alternates_with_training():
    model = Normed()
    run = torch.compile(model, backend="ipu")
    optimiser = sgd(model)
    for batch in images(2):
        DynamoDoor.__call__(type("Door", (), {"run": run, "optimiser": optimiser})(), *batch)
        model.eval()
        with torch.no_grad():
            torch.testing.assert_close(run(*batch), model(*batch), rtol=1e-4, atol=1e-5)
        model.train()


def test_an_inference_step_sees_what_a_train_step_has_learned():
    model = Normed()
    optimiser = sgd(model)
    train, infer = TrainStep(model, optimiser), InferenceStep(model)
    for batch in images(3):
        train(*batch)
        model.eval()
        with torch.no_grad():
            expected = model(*batch)
        torch.testing.assert_close(infer(*batch), expected, rtol=1e-4, atol=1e-5)
        model.train()
