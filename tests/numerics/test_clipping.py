"""Gradient clipping by the global norm inside the program, against torch.nn.utils.clip_grad_norm_ in float64."""

from __future__ import annotations

import copy

import pytest
import torch

import torchipu
from torchipu.errors import OptionsError
from torchipu.ir.text import format_executable
from torchipu.optim import LAMB, LARS

BATCH = 4


class Chain(torch.nn.Module):
    """Three layers of unlike gradients, each in a block of its own where there are several IPUs."""

    def __init__(self, ipus: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(70, 60), torch.nn.Linear(60, 40), torch.nn.Linear(40, 3)])
        self.ipus = ipus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            with torchipu.Block(f"block{number}", min(number, self.ipus - 1)):
                x = torch.tanh(layer(x)) if number < 2 else layer(x).square().mean() * 5
        return x


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    # With a small eps the first updates divide by next to nothing, and float32 differs from float64 by as much.
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, eps=1e-3),
    "lars": lambda p: LARS(p, lr=3.0, momentum=0.0, weight_decay=1e-3),
    "lamb": lambda p: LAMB(p, lr=0.01),
}


def eager(model, optimiser, batches, max_norm, *, accumulation=1):
    """Train in float64 and return the norms that clip_grad_norm_ found."""
    norms = []
    for batch in batches:
        optimiser.zero_grad()
        for part in batch.double().chunk(accumulation):
            (model(part) / accumulation).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimiser.step()
    return norms


def trained(optimiser_of, max_norm, *, ipus=1, updates=5, pieces=1, **options):
    """Return the parameters after training in the program and in eager float64, and the norms of the latter."""
    torch.manual_seed(3)
    model = Chain(ipus)
    exact = copy.deepcopy(model).double()
    batches = torch.randn(updates, BATCH * pieces, 70)
    step = torchipu.TrainStep(
        model, optimiser_of(model.parameters()), torchipu.Options(max_grad_norm=max_norm, **options)
    )
    for batch in batches:
        step(batch)
    norms = eager(exact, optimiser_of(exact.parameters()), batches, max_norm, accumulation=pieces)
    return list(model.parameters()), list(exact.parameters()), norms


def assert_alike(ours, exact):
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=3e-4, atol=3e-6)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_every_optimiser_clips_as_torch_does(name):
    # The bound lies among the norms, so that some updates are clipped and some are not.
    _, _, free = trained(OPTIMISERS[name], 1e9)
    ours, exact, norms = trained(OPTIMISERS[name], sorted(free)[2])
    assert len({norm > sorted(free)[2] for norm in norms}) == 2
    assert_alike(ours, exact)


@pytest.mark.parametrize(("ipus", "pieces", "options"), [
    (3, 8, {"gradient_accumulation": 8}),
    (3, 4, {"gradient_accumulation": 4, "execution": "sharded"}),
    (1, 2, {"replicas": 2}),
    (2, 8, {"replicas": 2, "gradient_accumulation": 4}),
    (1, 4, {"gradient_accumulation": 4, "loss_scaling": 256.0}),
])
def test_it_is_right_over_ipus_replicas_and_accumulation(ipus, pieces, options):
    ours, exact, norms = trained(OPTIMISERS["momentum"], 0.05, ipus=ipus, pieces=pieces, **options)
    assert min(norms) > 0.05
    assert_alike(ours, exact)


def test_the_norm_is_that_of_all_groups_together():
    torch.manual_seed(0)
    model = Chain()
    exact = copy.deepcopy(model).double()

    def groups(module):
        first, *others = module.layers
        return torch.optim.SGD([{"params": first.parameters(), "lr": 0.5},
                                {"params": [p for layer in others for p in layer.parameters()]}], lr=0.05)

    step = torchipu.TrainStep(model, groups(model), torchipu.Options(max_grad_norm=0.1))
    batches = torch.randn(4, BATCH, 70)
    for batch in batches:
        step(batch)
    eager(exact, groups(exact), batches, 0.1)
    assert_alike(model.parameters(), exact.parameters())


def test_more_parameters_than_one_op_takes_are_summed_by_a_tree():
    class Many(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = torch.nn.ParameterList([torch.full((3,), 1.0 + n / 50) for n in range(70)])

        def forward(self, x):
            return sum((x * scale).square().sum() for scale in self.scales)

    model = Many()
    exact = copy.deepcopy(model).double()
    x = torch.randn(3)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(max_grad_norm=1.0)
    )
    step(x)
    eager(exact, torch.optim.SGD(exact.parameters(), lr=0.1), [x], 1.0)
    assert_alike(model.parameters(), exact.parameters())


def test_a_norm_that_is_not_finite_does_to_weights_what_torch_does():
    results = []
    for run in ("program", "eager"):
        torch.manual_seed(1)
        weight = torch.nn.Linear(4, 1, bias=False)
        x = torch.tensor([[1.0, torch.inf, 2.0, -1.0]])
        optimiser = torch.optim.SGD(weight.parameters(), lr=1.0)
        if run == "program":
            torchipu.TrainStep(Sum(weight), optimiser, torchipu.Options(max_grad_norm=1.0))(x)
        else:
            weight(x).sum().backward()
            torch.nn.utils.clip_grad_norm_(weight.parameters(), 1.0)
            optimiser.step()
        results.append(weight.weight.detach())
    torch.testing.assert_close(*results, equal_nan=True)
    assert results[0].isnan().sum() == 1


class Sum(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).sum()


def test_large_scaled_gradients_do_not_overflow_the_sum_of_squares():
    weight = torch.nn.Linear(2, 1, bias=False)
    before = weight.weight.detach().clone()
    step = torchipu.TrainStep(
        Sum(weight), torch.optim.SGD(weight.parameters(), lr=1.0),
        torchipu.Options(max_grad_norm=1.0, loss_scaling=2.0**70),
    )
    step(torch.tensor([[3.0, 4.0]]))
    torch.testing.assert_close(before - weight.weight, torch.tensor([[0.6, 0.8]]), rtol=1e-5, atol=1e-6)


def test_results_do_not_depend_on_threads():
    found = [trained(OPTIMISERS["adam"], 0.05, host_threads=threads)[0] for threads in (1, 3)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_norm_is_computed_before_the_update_on_all_ipus():
    torch.manual_seed(3)
    model = Chain(3)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        torchipu.Options(max_grad_norm=1.0, execution="sharded"),
    )
    step(torch.randn(BATCH, 70))
    functions = step.compiled.executable.functions
    assert {"N0", "N1", "N2", "C2", "N0.send", "N1.send", "C2.send"} <= set(functions)
    text = format_executable(step.compiled.executable)
    main = text[text.index("main") :]
    assert main.index("call N0") < main.index("call N0.send") < main.index("call C2") < main.index("call U0")


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_bounds_that_make_no_sense_are_refused(norm):
    with pytest.raises(OptionsError, match="option 'max_grad_norm' expects a float above 0 or None"):
        torchipu.Options(max_grad_norm=norm)
