"""Any cut of a batch into iterations, accumulation and replicas: results, weights and buffers as eager loops give."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import torchipu.poptorch as poptorch
from tests.poptorch.models import options, sgd, twin_of
from torchipu.poptorch import OutputMode


class Model(nn.Module):
    """A layer and a buffer that each micro-batch changes and uses; returns predictions ``[N, 2]`` and their loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0))
        predicted = self.layer(x - self.mean).tanh()
        return predicted, F.mse_loss(predicted, y)


# Few examples: each is a program.
@settings(max_examples=12, deadline=None)
@given(
    iterations=st.integers(1, 4), accumulation=st.integers(1, 3), replicas=st.integers(1, 3), rows=st.integers(1, 3),
    mode=st.sampled_from([OutputMode.Final, OutputMode.All, OutputMode.Sum, OutputMode.EveryN]), mean=st.booleans(),
)
def test_any_cut_of_a_batch_gives_what_eager_loops_give(
    iterations: int, accumulation: int, replicas: int, rows: int, mode: OutputMode, mean: bool,
) -> None:
    period = iterations if iterations % 2 else 2  # a divisor
    more = {"output_return_period": period} if mode is OutputMode.EveryN else {}
    made = options(iterations, accumulation, mode, **more).replicationFactor(replicas).broadcastBuffers(False)
    kind = poptorch.ReductionType.Mean if mean else poptorch.ReductionType.Sum
    made.Training.accumulationAndReplicationReductionType(kind)
    model = Model()
    exact = twin_of(model).double()
    own = [exact.mean.clone() for _ in range(replicas)]  # each replica's buffer
    step = poptorch.trainingModel(model, made.useIpuModel(True), sgd(model, momentum=0.5))
    optimizer = sgd(exact, momentum=0.5)
    pieces = iterations * accumulation * replicas
    for _ in range(2):
        x, y = torch.randn(pieces * rows, 3), torch.randn(pieces * rows, 2)
        cut = zip(x.double().chunk(pieces), y.double().chunk(pieces), strict=True)
        found = []
        for _ in range(iterations):
            optimizer.zero_grad()
            for _, replica in itertools.product(range(accumulation), range(replicas)):
                exact.mean = own[replica]
                predicted, loss = exact(*next(cut))
                (loss / (accumulation * replicas) if mean else loss).backward()
                found.append((predicted.detach(), loss.detach()))
            optimizer.step()
        per_iteration = accumulation * replicas
        kept = {
            OutputMode.Final: found[-replicas:], OutputMode.All: found,
            OutputMode.Sum: [tuple(map(sum, zip(*found[r::replicas], strict=True))) for r in range(replicas)],
            OutputMode.EveryN: [
                piece for n, piece in enumerate(found) if (n // per_iteration + 1) % period == 0
            ],
        }[mode]
        expected_loss = torch.stack([loss for _, loss in kept]) if len(kept) > 1 else kept[0][1]
        predicted, loss = step(x, y)
        torch.testing.assert_close(predicted.double(), torch.cat([p for p, _ in kept]), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=1e-5)
    buffers = torch.stack(own) if replicas > 1 else own[0]
    torch.testing.assert_close(model.mean.detach().double(), buffers, rtol=1e-4, atol=1e-5)
