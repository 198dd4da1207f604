"""Adasum of the values of several processes, and optimisers that combine by it, held to the formula that defines it."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import pytest
import torch

from tests.distributed.adasum import INPUTS, RANKS, gradients, model
from tests.distributed.forked import outcomes


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Any]]:
    found = outcomes("tests.distributed.adasum")
    assert all(outcome.error is None for ranks in found.values() for outcome in ranks), found
    return {name: [outcome.value for outcome in ranks] for name, ranks in found.items()}


def adasum(values: list[np.ndarray]) -> np.ndarray:
    """Return what the paper defines, by halves: each vector less half of its projection onto the other, summed."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    a, b = adasum(values[:half]), adasum(values[half:])
    both = float((a * b).sum())
    of_a = 1 - both / (2 * float((a * a).sum())) if a.any() else 1.0
    of_b = 1 - both / (2 * float((b * b).sum())) if b.any() else 1.0
    return of_a * a + of_b * b


def test_values_are_combined_as_the_formula_says_each_tensor_for_itself(ran: dict[str, list[Any]]) -> None:
    given = [[one.double().numpy() for one in gradients(rank)] for rank in RANKS]
    expected = [adasum(list(values)) for values in zip(*given, strict=True)]
    for values in ran["four"]:
        assert values == ran["four"][0]  # the same bits everywhere
        for mine, other, exact in zip(values["apart"], values["together"], expected, strict=True):
            np.testing.assert_allclose(mine, exact, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(other, 2 * exact, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(values["half"], expected[0], rtol=5e-3)
    at_right_angles, alike, nothing = expected[1:]
    np.testing.assert_allclose(at_right_angles, sum(values[1] for values in given))
    np.testing.assert_allclose(alike, given[0][2])
    assert not nothing.any()


def test_an_optimiser_combines_what_the_steps_of_all_change(ran: dict[str, list[Any]]) -> None:
    layers = [model().double() for _ in RANKS]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in layers]
    for _ in range(2):
        before = [parameter.detach().clone() for parameter in layers[0].parameters()]
        for layer, optimizer, row in zip(layers, optimizers, INPUTS.double(), strict=True):
            optimizer.zero_grad()
            layer(row).square().sum().backward()
            optimizer.step()
        with torch.no_grad():
            for number, old in enumerate(before):
                own = [list(layer.parameters())[number] for layer in layers]
                change = adasum([(parameter - old).numpy() for parameter in own])
                for parameter in own:
                    parameter.copy_(old + torch.from_numpy(change))
    for values in ran["four"]:
        for mine, exact in zip(values["weights"], layers[0].parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(mine).double(), exact.detach(), rtol=1e-5, atol=1e-6)


def test_what_adasum_does_not_combine_is_refused(ran: dict[str, list[Any]]) -> None:
    for values in ran["four"]:
        assert values["whole"].startswith("ValueError: Adasum combines floats, not torch.int32")
        for name in ("set", "set of an optimiser"):
            assert values[name].startswith("NotImplementedError: Adasum does not support non-global process sets")
        assert values["skipped"].startswith(
            "AssertionError: Skipping synchronization is not supported when using Adasum optimizer."
        )
    for text in ran["three"]:
        assert text.startswith("ValueError: Running Adasum with non-power of 2 ranks is not supported yet: there are 3")


def test_alone_a_step_is_the_optimisers_own() -> None:
    hvd.init()
    try:
        weight = torch.nn.Parameter(torch.full((3,), 1 / 3))
        other = torch.nn.Parameter(weight.detach().clone())
        for parameter, optimizer in (
            (weight, hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.7), op=hvd.Adasum)),
            (other, torch.optim.SGD([other], lr=0.7)),
        ):
            parameter.grad = torch.tensor([0.1, 0.2, 0.3])
            optimizer.step()
        assert torch.equal(weight, other)
        assert torch.equal(hvd.allreduce(weight.detach(), op=hvd.Adasum), weight)
    finally:
        hvd.shutdown()
