"""Training in half: updates that nearest rounding loses, and what stochastic rounding makes of them."""

import pytest
import torch

import torchipu
from torchipu.errors import OptionsError


class Slope(torch.nn.Module):
    """A loss whose gradient is the same everywhere."""

    def __init__(self, size=4096):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size, dtype=torch.half))

    def forward(self, x):
        return (self.weight * x).sum()


def trained(optimiser, *, updates=100, **options):
    model = Slope()
    step = torchipu.TrainStep(
        model, optimiser(model.parameters()), torchipu.Options(seed=1, device_iterations=updates, **options)
    )
    step(torch.ones(updates * 4096, dtype=torch.half))
    return model.weight.detach().float()


OPTIMISERS = [
    lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
    lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.5),
    lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.0),
    lambda parameters: torch.optim.RMSprop(parameters, lr=1e-5),
]


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd", "momentum", "adamw", "rmsprop"])
def test_small_half_updates_stall_unless_they_are_rounded_stochastically(optimiser):
    exact = Slope().float()
    plain = optimiser(exact.parameters())
    for _ in range(100):
        plain.zero_grad()
        exact(torch.ones(4096)).backward()
        plain.step()
    assert bool((trained(optimiser) == 1).all())
    moved = trained(optimiser, stochastic_rounding=True)
    assert moved.unique().numel() > 2
    # Mean of 4096 weights, each a walk of at most 100 steps of 2^-10 or 2^-11.
    assert abs(moved.mean().item() - exact.weight.mean().item()) < 5e-4


def test_it_is_switched_off_and_on_between_calls_without_compiling():
    model = Slope()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=1e-4), torchipu.Options(stochastic_rounding=True, seed=1)
    )
    x = torch.ones(4096, dtype=torch.half)
    step.stochastic_rounding = False
    step(x)
    compiled = step.compiled
    assert bool((model.weight == 1).all())
    step.stochastic_rounding = True
    step(x)
    assert not bool((model.weight == 1).all())
    assert step.compiled is compiled


def test_a_program_without_it_cannot_switch_it_on():
    step = torchipu.InferenceStep(Slope())
    with pytest.raises(OptionsError, match="no stochastic rounding to switch on"):
        step.stochastic_rounding = True


def test_pipelined_and_sharded_programs_round_alike():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

        def forward(self, x):
            with torchipu.Block("a", 0):
                x = torch.relu(self.first(x))
            with torchipu.Block("b", 1):
                return self.second(x).square().mean()

    results = []
    for execution, threads, recompute in (("pipelined", 1, "none"), ("sharded", 3, "none"), ("pipelined", 2, "stage")):
        torch.manual_seed(0)
        model = Two().half()
        options = torchipu.Options(
            execution=execution, gradient_accumulation=4, stochastic_rounding=True, seed=5, host_threads=threads,
            recompute=recompute,
        )
        step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
        generator = torch.Generator().manual_seed(3)
        for _ in range(3):
            step(torch.randn(16, 8, generator=generator).half())
        results.append([p.detach().clone() for p in model.parameters()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
