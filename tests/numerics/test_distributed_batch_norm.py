"""Batch normalisation over groups of replicas, against eager float64 on what the replicas of a group hold together."""

from __future__ import annotations

import copy

import pytest
import torch

import torchipu
from torchipu.errors import OptionsError

REPLICAS, BATCH = 4, 3


class Net(torch.nn.Module):
    """Two normalisations, so that a micro-batch is cut several times."""

    def __init__(self, ipus: int = 1) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Conv2d(2, 5, 3, padding=1), torch.nn.BatchNorm2d(5, momentum=0.3)
        self.second, self.last = torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4, affine=False)
        self.ipus = ipus

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("a", 0):
            x = torch.relu(self.norm(self.first(x)))
        with torchipu.Block("b", self.ipus - 1):
            x = self.last(self.second(x.mean((2, 3))))
            return (x * torch.arange(4).to(x)).sin().mean()


def eager(model, batches, group, *, accumulation=1, lr=0.1):
    """Train in float64: the mean over groups, each of which sees its replicas' samples as one batch."""
    models = [model] + [copy.deepcopy(model) for _ in range(REPLICAS // group - 1)]
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    for batch in batches:
        optimiser.zero_grad()
        for micro in batch.double().chunk(accumulation):
            for replica, part in zip(models, micro.chunk(len(models)), strict=True):
                with torch.no_grad():
                    for mine, theirs in zip(replica.parameters(), model.parameters(), strict=True):
                        mine.copy_(theirs)
                loss = replica(part) / (len(models) * accumulation)
                grads = torch.autograd.grad(loss, list(replica.parameters()))
                for weight, grad in zip(model.parameters(), grads, strict=True):
                    weight.grad = grad if weight.grad is None else weight.grad + grad
        optimiser.step()
    return models


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("options", [
    {}, {"gradient_accumulation": 2}, {"gradient_accumulation": 4, "ipus": 2, "max_grad_norm": 1e6},
    {"device_iterations": 2}, {"host_threads": 1}, {"recompute": ("a",)},
], ids=str)
def test_moments_are_those_of_the_group(group, options):
    options = dict(options)
    ipus = options.pop("ipus", 1)
    torch.manual_seed(0)
    model = Net(ipus)
    exact = copy.deepcopy(model).double()
    accumulation, iterations = options.get("gradient_accumulation", 1), options.get("device_iterations", 1)
    batches = torch.randn(4, REPLICAS * BATCH * accumulation, 2, 4, 4)
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        torchipu.Options(replicas=REPLICAS, batch_norm_group_size=group, broadcast_buffers=False, **options),
    )
    for several in batches.split(iterations):
        step(several.flatten(0, 1))
    models = eager(exact, batches, group, accumulation=accumulation)
    for mine, theirs in zip(model.parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=2e-6)
    held = step.replica_buffers()
    for name in ("norm.running_mean", "norm.running_var", "last.running_mean", "last.running_var"):
        wanted = [dict(models[replica // group].named_buffers())[name] for replica in range(REPLICAS)]
        torch.testing.assert_close(held[name].double(), torch.stack(wanted), rtol=1e-4, atol=1e-6)


def test_a_group_of_one_is_each_replica_by_itself():
    results = []
    for keywords in ({}, {"batch_norm_group_size": 1}):
        torch.manual_seed(0)
        model = Net()
        options = torchipu.Options(replicas=2, broadcast_buffers=False, **keywords)
        step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
        step(torch.randn(6, 2, 4, 4, generator=torch.Generator().manual_seed(1)))
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_half_models_and_dropout_train_with_the_same_bits_for_any_threads():
    results = []
    for threads in (1, 3):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1), Mean(),
        ).half()
        step = torchipu.TrainStep(
            model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(
                replicas=2, batch_norm_group_size=2, broadcast_buffers=False, stochastic_rounding=True, seed=1,
                host_threads=threads,
            ),
        )
        for batch in torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(1)).half():
            step(batch)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) and bool(a.isfinite().all()) for a, b in zip(*results, strict=True))


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.float().square().mean()


def test_inference_uses_the_running_statistics_and_instance_norms_stay_apart():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.InstanceNorm1d(3)).train()
    model[0].eval()
    x = torch.randn(4, 3, 7)
    step = torchipu.InferenceStep(model, torchipu.Options(replicas=2, batch_norm_group_size=2))
    torch.testing.assert_close(step(x), model(x), rtol=1e-5, atol=1e-6)


def test_the_device_program_reduces_over_the_replicas_within_forward_and_backward():
    model = Net()
    step = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        torchipu.Options(replicas=2, batch_norm_group_size=2, broadcast_buffers=False),
    )
    step(torch.randn(6, 2, 4, 4))
    plain = torchipu.TrainStep(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(replicas=2, broadcast_buffers=False)
    )
    plain(torch.randn(6, 2, 4, 4))
    assert step.profile.cycles_per_update > plain.profile.cycles_per_update
    assert sum(op.kind == "replica_mean" for op in step.compiled.graph.ops) == 8


def test_groups_that_do_not_divide_the_replicas_are_refused():
    with pytest.raises(OptionsError, match=r"(?s)batch_norm_group_size=3 does not divide replicas=4.*allowed 1, 2, 4"):
        torchipu.Options(replicas=4, batch_norm_group_size=3)
