"""Programs of horovod that combine by Adasum, in four processes and in three; run by ``tests.distributed.forked``."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch

from tests.distributed.forked import Scenario
from tests.distributed.instances import AT_A_PORT, error_of, under_torchrun

RANKS = (0, 1, 2, 3)
INPUTS = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 2.0], [-1.0, 1.0, 1.0], [3.0, -2.0, 0.25]])


def gradients(rank: int) -> list[torch.Tensor]:
    """Return a vector that is like the others', one at right angles to them, and zeros."""
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.ones(5) + torch.randn(5, generator=generator), torch.eye(4)[rank].reshape(2, 2) * (rank + 1),
        torch.full((3,), 2.0), torch.zeros(2),
    ]


def model() -> torch.nn.Linear:
    """Return the model that all processes begin with."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def combine(rank: int) -> Any:
    under_torchrun(rank, 4)
    hvd.init()
    pair = hvd.add_process_set([0, 1])
    own = gradients(rank)
    found: dict[str, Any] = {
        "apart": [hvd.allreduce(one, op=hvd.Adasum).tolist() for one in own],
        "together": [one.tolist() for one in hvd.grouped_allreduce(own, op=hvd.Adasum, postscale_factor=2.0)],
        "half": hvd.allreduce(own[0], op=hvd.Adasum, compression=hvd.Compression.fp16).tolist(),
        "whole": error_of(lambda: hvd.allreduce(torch.ones(2, dtype=torch.int32), op=hvd.Adasum)),
        "set": error_of(lambda: hvd.allreduce(own[0], op=hvd.Adasum, process_set=pair)),
        "set of an optimiser": error_of(lambda: hvd.DistributedOptimizer(
            torch.optim.SGD([torch.nn.Parameter(own[0])], lr=1.0), op=hvd.Adasum, process_set=pair,
        )),
    }
    layer = model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9), layer.named_parameters(), op=hvd.Adasum,
    )
    for _ in range(2):
        optimizer.zero_grad()
        layer(INPUTS[rank]).square().sum().backward()
        optimizer.step()
    found["skipped"] = error_of(lambda: optimizer.skip_synchronize().__enter__())
    found["weights"] = [parameter.tolist() for parameter in layer.parameters()]
    return found


def odd_number(rank: int) -> Any:
    under_torchrun(rank, 3)
    hvd.init()
    return error_of(lambda: hvd.allreduce(torch.ones(2), op=hvd.Adasum))


SCENARIOS = {
    "four": Scenario(combine, RANKS, AT_A_PORT),
    "three": Scenario(odd_number, RANKS[:3], AT_A_PORT),
}
