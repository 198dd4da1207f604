"""Automatic loss scaling: what moves the scale, that it is transparent, and constant scales that make no sense."""

from __future__ import annotations

import copy

import popart
import poptorch
import pytest
import torch

import torchipu
from torchipu.errors import OptionsError
from torchipu.optim import LAMB, LARS
from torchipu.poptorch.executor.translation import core_options


class Net(torch.nn.Module):
    last = 0

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(12, 20), torch.nn.Linear(20, 2)

    def forward(self, x):
        with torchipu.Block("a", 0):
            x = torch.tanh(self.first(x))
        with torchipu.Block("b", self.last):
            return self.second(x).float().square().mean()


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-3),
    "lamb": lambda p: LAMB(p, lr=0.01),
    "lars": lambda p: LARS(p, lr=1.0),
}


def train(optimiser_of, *, updates=6, pieces=1, ipu=0, dtype=torch.float32, **options):
    torch.manual_seed(8)
    model = Net().to(dtype)
    model.last = ipu
    step = torchipu.TrainStep(model, optimiser_of(model.parameters()), torchipu.Options(**options))
    scales = []
    for batch in torch.randn(updates, 4 * pieces, 12).to(dtype):
        step(batch)
        scales.append(step.loss_scale)
    return [p.detach().clone() for p in model.parameters()], scales


@pytest.mark.parametrize("name", OPTIMISERS)
def test_it_is_transparent_in_float32_for_every_optimiser(name):
    plain, constant = train(OPTIMISERS[name])
    scaled, scales = train(OPTIMISERS[name], automatic_loss_scaling=True)
    assert constant == [1.0] * 6
    assert scales == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    # Powers of two: not a bit differs.
    assert all(torch.equal(a, b) for a, b in zip(plain, scaled, strict=True))


@pytest.mark.parametrize(("pieces", "options"), [
    (4, {"gradient_accumulation": 4}), (2, {"replicas": 2}), (4, {"device_iterations": 4}),
    (8, {"gradient_accumulation": 4, "replicas": 2, "ipu": 1, "max_grad_norm": 0.1}),
    (3, {"gradient_accumulation": 3, "ipu": 1, "mean_reduction": "running"}),
])
def test_it_is_transparent_over_micro_batches_replicas_and_ipus(pieces, options):
    plain, _ = train(OPTIMISERS["momentum"], pieces=pieces, **options)
    scaled, scales = train(OPTIMISERS["momentum"], pieces=pieces, automatic_loss_scaling=True, **options)
    assert scales[-1] == min(2.0**15, 2.0 ** (6 * options.get("device_iterations", 1)))
    for mine, theirs in zip(plain, scaled, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


class Slope(torch.nn.Module):
    def __init__(self, size=1000):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size, dtype=torch.half))

    def forward(self, x):
        return (self.weight * x).float().sum()


def scale_after(gradient, *, loss_scaling=1.0, calls=1, **options):
    model = Slope(len(gradient))
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0),
        torchipu.Options(automatic_loss_scaling=True, loss_scaling=loss_scaling, **options),
    )
    for _ in range(calls):
        step(gradient.half())
    return step.loss_scale


def test_the_scale_rises_unless_a_gradient_is_near_the_end_of_its_range():
    # An eighth of 65504 is 8188; one element in a thousand is more than one in ten million.
    small = torch.ones(1000)
    assert scale_after(small) == 2.0
    assert scale_after(small.index_fill(0, torch.tensor([7]), 8184.0)) == 2.0
    assert scale_after(small.index_fill(0, torch.tensor([7]), 8192.0)) == 0.5
    assert scale_after(small.index_fill(0, torch.tensor([7]), torch.inf)) == 0.5
    assert scale_after(small.index_fill(0, torch.tensor([7]), torch.nan)) == 0.5


def test_edge_and_threshold_are_options():
    one_of_a_thousand = torch.ones(1000).index_fill(0, torch.tensor([7]), 1000.0)
    assert scale_after(one_of_a_thousand) == 2.0
    assert scale_after(one_of_a_thousand, loss_scale_bin_edge=0.01) == 0.5  # 655
    assert scale_after(one_of_a_thousand, loss_scale_bin_edge=0.01, loss_scale_threshold=0.002) == 2.0


def test_a_period_of_several_updates_decides_by_all_of_them():
    model = Slope(1000)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0),
        torchipu.Options(
            automatic_loss_scaling=True, loss_scaling=4.0, loss_scale_period=3, floating_point_exceptions=True,
        ),
    )
    small, large = torch.ones(1000).half(), torch.full((1000,), 1200.0).half()
    scales = []
    for gradient in (small, small, small, small, large, small, small):
        step(gradient)
        scales.append(step.loss_scale)
    assert scales == [4.0, 4.0, 8.0, 8.0, 8.0, 4.0, 4.0]
    with pytest.raises(torchipu.errors.ExecutionError):  # what fails counts for nothing
        step(torch.full((1000,), 60000.0).half())
    step(small)
    assert step.loss_scale == 4.0
    step(small)
    assert step.loss_scale == 8.0


class Narrow(torch.nn.Module):
    """A product whose result has a gradient of 4 * 2^12, its weight one of 2^-10 of it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.half))

    def forward(self, x):
        return (x * 2.0**-10) @ self.weight


class Narrowed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Narrow()
        self.outer = torch.nn.Linear(4, 4, bias=False).half()
        torch.nn.init.constant_(self.outer.weight, 2.0**12)

    def forward(self, x):
        return self.outer(self.inner(x)).float().sum()


def scale_of_narrowed(**options):
    model = Narrowed()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0), torchipu.Options(automatic_loss_scaling=True, **options),
    )
    step(torch.ones(2, 4).half())
    return step.loss_scale


@pytest.mark.parametrize(("which", "wanted"), [("weights", 2.0), ("all", 0.5), ("products", 0.5), (None, 0.5)])
def test_gradients_between_the_weights_are_watched_too_unless_told_otherwise(which, wanted):
    assert scale_of_narrowed(**({"loss_scale_gradients": which} if which else {})) == wanted


@pytest.mark.parametrize(("names", "wanted"), [
    (["inner.weight"], 2.0),  # a parameter
    (["outer.weight", "inner.weight"], 2.0),
    (["inner"], 2.0),  # a module: its product gives the gradient of its weight alone
    (["outer"], 0.5),  # this one gives that of the inner result too
    (["mm"], 0.5),  # a tensor of the forward
])
def test_tensors_to_watch_are_named_as_parameters_modules_or_tensors(names, wanted):
    assert scale_of_narrowed(loss_scale_tensors=names) == wanted


@pytest.mark.parametrize(("names", "words"), [
    (["iner.weight"], r"loss_scale_tensors names 'iner.weight', which the model does not have; did you mean 'inner.we"),
    (["input_0"], r"(?s)loss_scale_tensors names 'input_0', which has no gradient.*name parameters or modules"),
    ([], "option 'loss_scale_tensors' got an empty list of tensor names"),
    ("inner.weight", r"option 'loss_scale_tensors' expects a list of tensor names or None, got 'inner.weight' \(str\)"),
])
def test_names_that_mean_nothing_are_refused_with_those_that_do(names, words):
    with pytest.raises(OptionsError, match=words):
        scale_of_narrowed(loss_scale_tensors=names)


def test_a_spike_lowers_the_scale_at_once_and_its_update_is_done_all_the_same():
    # PopART skips no update: the edge at an eighth of the range leaves room for what comes between two of them.
    model, exact = Slope(64), Slope(64).double()
    optimiser_of = lambda m: torch.optim.SGD(m.parameters(), lr=2.0**-14, momentum=0.5)  # noqa: E731
    step = torchipu.TrainStep(
        model, optimiser_of(model), torchipu.Options(automatic_loss_scaling=True, loss_scaling=2.0**8),
    )
    reference, scales = optimiser_of(exact), []
    for size in (1.0, 1.0, 32.0, 1.0, 1.0):  # the third meets a scale of 1024: half of the range
        gradient = torch.full((64,), size).half()
        step(gradient)
        scales.append(step.loss_scale)
        reference.zero_grad()
        exact(gradient.double()).backward()
        reference.step()
    assert scales == [512.0, 1024.0, 512.0, 1024.0, 2048.0]
    torch.testing.assert_close(model.weight.double(), exact.weight, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("overflow", "wanted"), [
    ("infinity", -torch.inf), ("nan", torch.nan), ("saturate", -65504 / 1024 * 2.0**-14),
])
def test_a_spike_beyond_the_range_does_what_the_machine_makes_of_an_overflow(overflow, wanted):
    model = Slope(8)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=2.0**-14),
        torchipu.Options(automatic_loss_scaling=True, loss_scaling=1024.0, half_overflow=overflow),
    )
    gradient = torch.zeros(8).half()
    gradient[3] = 64.0
    step(gradient)
    assert step.loss_scale == 512.0
    found = torch.zeros(8)
    found[3] = wanted
    torch.testing.assert_close(model.weight.detach().float(), found, rtol=1e-3, atol=0, equal_nan=True)


def test_settings_of_popart_reach_the_program():
    options = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    options.Training.setAutomaticLossScaling(True)
    for name, value in {
        "binEdgeLocation": 0.25, "thresholdUpperCountProportion": 0.001, "updatePeriod": 4,
        "gradientTensorTrackingMethod": "GradientTensorTrackingMethod::ConvAndMatmulGradients",
    }.items():
        options._Popart.set(f"automaticLossScalingSettings.{name}", value)
    model = torch.nn.Linear(2, 2)
    core = core_options(options, poptorch.optim.SGD(model.parameters(), lr=0.1))
    assert core.automatic_loss_scaling
    assert core.loss_scale_bin_edge == 0.25
    assert core.loss_scale_threshold == 0.001
    assert core.loss_scale_period == 4
    assert core.loss_scale_gradients == "products"
    method = "automaticLossScalingSettings.gradientTensorTrackingMethod"
    for value in (0, popart.GradientTensorTrackingMethod.AllNonViewChangingGradientTensors):
        options._Popart.set(method, value)
        assert core_options(options, poptorch.optim.SGD(model.parameters(), lr=0.1)).loss_scale_gradients == "all"


@pytest.mark.parametrize(("settings", "words"), [
    ({"gradientTensorTrackingMethod": "Some"},
     "AllNonViewChangingGradientTensors or ConvAndMatmulGradients or GradientsOfUserSpecifiedTensors"),
    ({"gradientTensorTrackingMethod": 3}, "Unsupported value 3 of automaticLossScalingSettings.gradientTensorTracking"),
    ({"gradientTensorTrackingMethod": 2}, "toTrackTensors does not say of which: set it to a list of names"),
    ({"gradientTensorTrackingMethod": 1, "toTrackTensors": ["0.weight"]},
     "toTrackTensors has been set, but .* is ConvAndMatmulGradients: set it to GradientsOfUserSpecifiedTensors"),
    ({"toTrackTensors": "0.weight"}, "toTrackTensors takes a list of names of tensors, not '0.weight'"),
    ({"toTrackTensors": []}, "toTrackTensors takes a list of names of tensors"),
    ({"binEdge": 0.5}, "Unknown option automaticLossScalingSettings.binEdge: there are binEdgeLocation, threshold"),
])
def test_settings_of_popart_that_contradict_each_other_are_refused(settings, words):
    options = poptorch.Options().outputMode(poptorch.OutputMode.Final)
    for name, value in settings.items():
        options._Popart.set(f"automaticLossScalingSettings.{name}", value)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(poptorch.Error, match=words):
        core_options(options, poptorch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(("names", "wanted"), [
    ({"inner.inner.weight"}, 2.0), (["Gradient___inner.inner.weight"], 2.0), (["inner/inner/MatMul:0"], 0.5),
    (["inner/outer/Gradient___MatMul:0"], 2.0), (["inner/outer/Gradient___MatMul/1:0"], 0.5), (["inner.outer"], 0.5),
])
def test_a_poptorch_program_tracks_the_tensors_that_it_names(names, wanted):
    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Narrowed()

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x), reduction="none")

    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    options._Popart.set("automaticLossScalingSettings.toTrackTensors", names)
    model = WithLoss()
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    training(torch.ones(2, 4).half())
    assert training._session().state_named("loss_scale") == wanted


def test_a_poptorch_program_that_tracks_what_it_does_not_have_is_refused():
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    options._Popart.set("automaticLossScalingSettings.toTrackTensors", ["layer.weight"])

    class Lossy(Slope):
        def forward(self, x):
            return poptorch.identity_loss(super().forward(x), reduction="none")

    model = Lossy(4)
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))
    with pytest.raises(poptorch.Error, match=r"names 'layer\.weight', which the model does not have"):
        training(torch.ones(4).half())


def test_it_settles_where_gradients_use_the_range():
    # 3 * 2^11 = 6144 is below the edge, twice that is not.
    scales = {scale_after(torch.full((64,), 3.0), calls=calls) for calls in (11, 12, 13, 14, 20, 21)}
    assert scales == {2.0**11, 2.0**12}


def test_it_stays_within_what_a_half_loss_can_hold():
    # The gradient of the sum in half is the scale itself: only that of the weight is small.
    weights = {"loss_scale_gradients": "weights"}
    assert scale_after(torch.full((4,), 1e-6), loss_scaling=2.0**14, calls=5, **weights) == 2.0**15
    assert scale_after(torch.full((4,), 1e-6), loss_scaling=2.0**12, calls=5) in (2.0**12, 2.0**13)
    assert scale_after(torch.full((4,), torch.inf), loss_scaling=2.0**-13, calls=5) == 2.0**-14


def test_half_losses_are_scaled_too():
    class Half(Slope):
        def forward(self, x):
            return (self.weight * x).sum()

    model = Half()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=1.0),
        torchipu.Options(automatic_loss_scaling=True, loss_scaling=256.0),
    )
    x = torch.full((1000,), 0.125).half()
    step(x)
    step(x)
    assert step.loss_scale == 1024.0
    assert bool((model.weight == -0.25).all())


def test_half_training_gains_what_a_constant_scale_of_one_loses():
    x = torch.full((1000,), 2e-8)  # below half of the smallest half: the gradient is zero without a scale

    class Tiny(Slope):
        def forward(self, x):
            return (self.weight.float() * x).sum()

    moved = {}
    for automatic in (False, True):
        model = Tiny()
        step = torchipu.TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=1e4),
            torchipu.Options(automatic_loss_scaling=automatic),
        )
        for _ in range(16):
            step(x)
        moved[automatic] = model.weight.detach().float()
    assert bool((moved[False] == 0).all())
    torch.testing.assert_close(moved[True], torch.full((1000,), -15 * 2e-4), rtol=0.1, atol=0)


def test_a_call_that_fails_leaves_the_scale_as_it_was():
    model = Net()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        torchipu.Options(automatic_loss_scaling=True, floating_point_exceptions=True),
    )
    step(torch.randn(4, 12))
    with pytest.raises(torchipu.errors.ExecutionError):
        step(torch.full((4, 12), 3e38))
    assert step.loss_scale == 2.0


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_constant_scales_that_make_no_sense_are_refused_with_what_to_do(scale):
    with pytest.raises(OptionsError) as caught:
        torchipu.Options(loss_scaling=scale)
    assert str(caught.value).splitlines() == [
        f"option 'loss_scaling' expects a float above 0, got {scale} (float)",
        "  allowed a float above 0",
        "  do      use a power of two such as 1024.0, or automatic_loss_scaling=True, which finds one",
    ]


def test_poptorch_switches_it_on_and_keeps_it_through_set_optimizer():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 3))

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return poptorch.identity_loss(self.inner(x).square(), reduction="mean")

    exact = copy.deepcopy(model).double()
    options = poptorch.Options()
    options.Training.setAutomaticLossScaling(True)
    optimiser = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=64.0)
    training = poptorch.trainingModel(WithLoss(), options, optimizer=optimiser)
    reference = torch.optim.SGD(exact.parameters(), lr=0.1, momentum=0.9)
    for number, x in enumerate(torch.randn(4, 5, 6)):
        training(x)
        reference.zero_grad()
        exact(x.double()).square().mean().backward()
        reference.step()
        if number == 1:
            optimiser.param_groups[0]["lr"] = reference.param_groups[0]["lr"] = 0.05
            training.setOptimizer(optimiser)
    assert training._session().state_named("loss_scale") == 1024.0
    for mine, theirs in zip(training.inner.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-5, atol=1e-6)


class Stages(torch.nn.Module):
    """Two factors on two IPUs, of which only the first, 2^-6, has gradients as large as the input."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Parameter(torch.full((16,), 2.0**-6, dtype=torch.half))
        self.second = torch.nn.Parameter(torch.ones(16, dtype=torch.half))

    def forward(self, x):
        with torchipu.Block("a", 0):
            x = self.first * x
        with torchipu.Block("b", 1):
            return (self.second * x).float().sum()


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("tracked", ["all", "weights"])
def test_a_spike_in_one_micro_batch_of_one_replica_lowers_the_scale_of_all(tracked, place):
    model = Stages()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.0),
        torchipu.Options(
            automatic_loss_scaling=True, loss_scaling=64.0, replicas=2, gradient_accumulation=4,
            loss_scale_gradients=tracked,
        ),
    )
    x = torch.ones(8, 16).half()
    step(x.flatten())
    assert step.loss_scale == 128.0
    x[place, 5] = 100.0  # times 128, beyond 8188
    step(x.flatten())
    assert step.loss_scale == 64.0
    step(x.flatten())  # times 64, not
    assert step.loss_scale == 128.0
