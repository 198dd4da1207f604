"""Learning rate schedulers of torch drive optimisers of an executor as they drive a training loop in eager."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from tests.poptorch.models import Classifier, batch, options
from torchipu import poptorch

BATCH = batch(4)
STEPS = 5
SCHEDULERS: dict[str, Callable[..., Any]] = {
    "LambdaLR": lambda optimizer, **more: lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch, **more),
    "MultiplicativeLR": lambda optimizer, **more: lr_scheduler.MultiplicativeLR(optimizer, lambda _: 0.8, **more),
    "StepLR": lambda optimizer, **more: lr_scheduler.StepLR(optimizer, 2, **more),
    "MultiStepLR": lambda optimizer, **more: lr_scheduler.MultiStepLR(optimizer, [2, 4], **more),
    "ConstantLR": lambda optimizer, **more: lr_scheduler.ConstantLR(optimizer, 0.5, 3, **more),
    "LinearLR": lambda optimizer, **more: lr_scheduler.LinearLR(optimizer, 0.5, 1, 3, **more),
    "ExponentialLR": lambda optimizer, **more: lr_scheduler.ExponentialLR(optimizer, 0.8, **more),
    "PolynomialLR": lambda optimizer, **more: lr_scheduler.PolynomialLR(optimizer, 4, **more),
    "CosineAnnealingLR": lambda optimizer, **more: lr_scheduler.CosineAnnealingLR(optimizer, 4, **more),
    "CosineAnnealingWarmRestarts":
        lambda optimizer, **more: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, **more),
    "CyclicLR": lambda optimizer, **more: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 2, **more),
    "OneCycleLR": lambda optimizer, **more: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12, **more),
}
WITHOUT_LAST_EPOCH: dict[str, Callable[..., Any]] = {
    "ReduceLROnPlateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.8)], [2],
    ),
    "ChainedScheduler": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.1, 2), lr_scheduler.ExponentialLR(optimizer, 0.8)],
    ),
    "SWALR": lambda optimizer: torch.optim.swa_utils.SWALR(optimizer, 0.02, anneal_epochs=3),
}


def groups(model: Classifier) -> list[dict[str, Any]]:
    return [{"params": list(model.body.parameters()), "lr": 0.05}, {"params": list(model.head.parameters())}]


def advance(scheduler: Any) -> None:
    if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        scheduler.step(1.0)
    else:
        scheduler.step()


def in_eager(
    make: Callable[..., Any], optimizer_of: Callable[[Any], torch.optim.Optimizer], resumes_at: int | None,
) -> tuple[list[list[float]], list[torch.Tensor]]:
    """Return the rates of every step, and the parameters after the last; in double precision."""
    model = Classifier().double()
    optimizer = optimizer_of(groups(model))
    scheduler, rates = make(optimizer), []
    for number in range(STEPS):
        if number == resumes_at:
            scheduler = make(optimizer, last_epoch=scheduler.last_epoch)
        optimizer.zero_grad()
        model(BATCH[0].double(), BATCH[1])[1].backward()
        optimizer.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
        advance(scheduler)
    return rates, [value.detach() for value in model.parameters()]


def on_ipu(
    make: Callable[..., Any], optimizer_of: Callable[[Any], torch.optim.Optimizer], resumes_at: int | None, when: str,
) -> tuple[list[list[float]], list[torch.Tensor]]:
    """The same by an executor, for which the scheduler is made at one time or another."""
    model = Classifier()
    optimizer = optimizer_of(groups(model))
    scheduler = make(optimizer) if when == "before it is wrapped" else None
    step, rates = poptorch.trainingModel(model, options(), optimizer), []
    if when == "once it is compiled":
        step.compile(*BATCH)
    if scheduler is None:
        scheduler = make(optimizer)
        step.setOptimizer(optimizer)
    for number in range(STEPS):
        if number == resumes_at:
            scheduler = make(optimizer, last_epoch=scheduler.last_epoch)
            step.setOptimizer(optimizer)
        step(*BATCH)
        rates.append([group["lr"] for group in optimizer.param_groups])
        advance(scheduler)
        step.setOptimizer(optimizer)
    return rates, [value.detach().clone() for value in model.parameters()]


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "poptorch.optim.SGD": (
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: poptorch.optim.SGD(params, lr=0.1, momentum=0.9, use_combined_accum=False),
    ),
    "torch.optim.SGD": (
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    ),
    "poptorch.optim.AdamW": (
        lambda params: torch.optim.AdamW(params, lr=0.1, betas=(0.9, 0.999)),
        lambda params: poptorch.optim.AdamW(params, lr=0.1, betas=(0.9, 0.999)),
    ),
}
TIMES = ("before it is wrapped", "before it is compiled", "once it is compiled")
CASES = [
    (name, optimizer, when, resumes_at)
    for number, (name, (place, when)) in enumerate(
        itertools.product((*SCHEDULERS, *WITHOUT_LAST_EPOCH), enumerate(TIMES)),
    )
    for optimizer in (tuple(OPTIMIZERS)[(number // 3 + place) % 3],)
    for resumes_at in ((None, 3) if name in SCHEDULERS and when == TIMES[-1] else (None,))
]
"""Every scheduler at every time, with each kind of optimiser once; resumed where the program is compiled already."""


@pytest.mark.parametrize(("name", "optimizer", "when", "resumes_at"), CASES)
@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step:UserWarning")
def test_a_scheduler_drives_an_executor_as_it_drives_eager(
    name: str, optimizer: str, when: str, resumes_at: int | None,
) -> None:
    make = {**SCHEDULERS, **WITHOUT_LAST_EPOCH}[name]
    in_double, ours = OPTIMIZERS[optimizer]
    expected, got = in_eager(make, in_double, resumes_at), on_ipu(make, ours, resumes_at, when)
    assert got[0] == expected[0]
    assert len({tuple(rates) for rates in got[0]}) > 1  # it does change them
    for found, wanted in zip(got[1], expected[1], strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["CyclicLR", "OneCycleLR"])
def test_a_scheduler_of_betas_says_how_these_may_vary(name: str) -> None:
    """Both schedulers change the first beta too, which is a constant of the program unless it was given."""
    model = Classifier()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    step = poptorch.trainingModel(model, options(), optimizer)
    step(*BATCH)
    before = copy.deepcopy(model.state_dict())
    scheduler.step()
    with pytest.raises(poptorch.Error, match=r"constant optimizer value: betas of group 0") as caught:
        step.setOptimizer(optimizer)
    assert "markAsVariable" in str(caught.value)
    for name_of, value in model.state_dict().items():
        assert torch.equal(value, before[name_of])
