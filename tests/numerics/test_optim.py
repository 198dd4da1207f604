"""LAMB and LARS on the host and in the program, against their papers in numpy and float64, and against timm."""

from __future__ import annotations

import importlib
import importlib.util

import numpy as np
import pytest
import torch

import torchipu
from tests.models.architectures.torchvision_schemas import import_torchvision
from torchipu.errors import OptionsError
from torchipu.optim import LAMB, LARS

UPDATES = 6


class Affine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(70, 130), torch.nn.Linear(130, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x))).square().mean()


def model_and_batches() -> tuple[Affine, torch.Tensor]:
    torch.manual_seed(4)
    return Affine(), torch.randn(UPDATES, 5, 70)


def lamb_by_the_paper(w, grads, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01, corrected=True, most=65500.0):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for step, g in enumerate(grads, start=1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
        m_hat, v_hat = (m / (1 - beta1**step), v / (1 - beta2**step)) if corrected else (m, v)
        u = m_hat / (np.sqrt(v_hat) + eps) + decay * w
        weight, length = min(np.linalg.norm(w), most), np.linalg.norm(u)
        w = w - lr * (weight / length if weight > 0 and length > 0 else 1.0) * u
        yield w


def lars_by_the_paper(w, grads, *, lr, momentum=0.9, decay=1e-4, trust=0.001, eps=1e-8):
    v = np.zeros_like(w)
    for g in grads:
        weight, slope = np.linalg.norm(w), np.linalg.norm(g)
        local = trust * weight / (slope + decay * weight + eps) if weight > 0 and slope > 0 else 1.0
        v = momentum * v + lr * local * (g + decay * w)
        w = w - v
        yield w


CASES = {
    "lamb": (lambda p: LAMB(p, lr=0.02), lambda w, g: lamb_by_the_paper(w, g, lr=0.02)),
    "lamb without correction": (
        lambda p: LAMB(p, lr=0.02, bias_correction=False, weight_decay=0.3, betas=(0.8, 0.95)),
        lambda w, g: lamb_by_the_paper(w, g, lr=0.02, corrected=False, decay=0.3, beta1=0.8, beta2=0.95),
    ),
    "lamb of bounded norm": (
        lambda p: LAMB(p, lr=0.05, max_weight_norm=0.25), lambda w, g: lamb_by_the_paper(w, g, lr=0.05, most=0.25),
    ),
    "lars": (
        lambda p: LARS(p, lr=2.0, weight_decay=1e-4), lambda w, g: lars_by_the_paper(w, g, lr=2.0),
    ),
    "lars without momentum": (
        lambda p: LARS(p, lr=3.0, momentum=0.0, trust_coefficient=0.02),
        lambda w, g: lars_by_the_paper(w, g, lr=3.0, momentum=0.0, decay=0.0, trust=0.02),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("start", ["random", "zeros"])
def test_the_host_follows_the_paper(name: str, start: str) -> None:
    optimiser_of, paper = CASES[name]
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(40, 7, generator=generator, dtype=torch.float64) * (start == "random")
    grads = [torch.randn(40, 7, generator=generator, dtype=torch.float64) for _ in range(UPDATES)]
    weight = torch.nn.Parameter(first.clone())
    optimiser = optimiser_of([weight])
    for grad, wanted in zip(grads, paper(first.numpy(), [g.numpy() for g in grads]), strict=True):
        weight.grad = grad.clone()
        optimiser.step()
        np.testing.assert_allclose(weight.detach().numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_the_program_equals_float64_on_the_host(name: str, threads: int) -> None:
    model, batches = model_and_batches()
    exact = Affine().double()
    exact.load_state_dict(model.state_dict())
    reference = CASES[name][0](exact.parameters())
    options = torchipu.Options(device_iterations=2, loss_scaling=8.0, host_threads=threads)
    step = torchipu.TrainStep(model, optimiser := CASES[name][0](model.parameters()), options)
    for pair in batches.split(2):
        step(pair.flatten(0, 1))
        for batch in pair:
            reference.zero_grad()
            exact(batch.double()).backward()
            reference.step()
    for ours, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-6)
    for state in optimiser.state_dict()["state"].values():
        assert state.get("step", torch.tensor(6.0)) == UPDATES


def test_results_do_not_depend_on_threads() -> None:
    results = []
    for threads in (1, 2, 4):
        model, batches = model_and_batches()
        step = torchipu.TrainStep(model, LAMB(model.parameters()), torchipu.Options(host_threads=threads))
        for batch in batches:
            step(batch)
        results.append(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_halves_are_updated_with_states_in_half() -> None:
    model, batches = model_and_batches()
    model.half()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    options = torchipu.Options(stochastic_rounding=True, seed=1)
    step = torchipu.TrainStep(model, optimiser := LAMB(model.parameters(), lr=0.01), options)
    losses = [step(batch.half()).item() for batch in batches for _ in range(4)]
    assert losses[-1] < losses[0]
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert {state["exp_avg"].dtype for state in optimiser.state.values()} == {torch.half}


@pytest.mark.parametrize("kind", ["Lamb", "Lars"])
def test_it_agrees_with_timm_where_both_compute_the_same(kind: str) -> None:
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is the judge: install torchipu[models]")
    import_torchvision()
    timm = importlib.import_module("timm.optim")
    generator = torch.Generator().manual_seed(2)
    first = torch.randn(30, 9, generator=generator, dtype=torch.float64)
    ours, theirs = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
    if kind == "Lamb":
        mine = LAMB([ours], lr=0.01, eps=1e-6)
        other = timm.Lamb([theirs], lr=0.01, eps=1e-6, weight_decay=0.01, max_grad_norm=None)
    else:
        mine = LARS([ours], lr=0.5, momentum=0.0, weight_decay=0.01)
        other = timm.Lars([theirs], lr=0.5, momentum=0.0, weight_decay=0.01, trust_coeff=0.001)
    for _ in range(5):
        grad = torch.randn(30, 9, generator=generator, dtype=torch.float64)
        ours.grad, theirs.grad = grad.clone(), grad.clone()
        mine.step()
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("kind", "keywords", "words"), [
    (LAMB, {"lr": -1.0}, "lr must not be negative, got -1.0"),
    (LAMB, {"betas": (0.9, 1.0)}, r"betas must lie in \[0, 1\), got \(0.9, 1.0\)"),
    (LARS, {"trust_coefficient": float("nan")}, "trust_coefficient must not be negative, got nan"),
])
def test_bad_numbers_are_refused(kind: type, keywords: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind([torch.nn.Parameter(torch.ones(2))], **keywords)


def test_other_optimisers_are_refused_with_a_list_of_those_that_run() -> None:
    model, batches = model_and_batches()
    step = torchipu.TrainStep(model, torch.optim.Adagrad(model.parameters()))
    with pytest.raises(OptionsError, match=r"torch.optim.SGD, torchipu.optim.LAMB, torchipu.optim.LARS"):
        step(batches[0])
