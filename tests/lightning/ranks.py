"""What each of two processes trains, as ``torchrun`` starts them; run by ``tests.distributed.forked``."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from tests.distributed.forked import Scenario
from tests.lightning.runs import QUIET, samples
from tests.lightning.test_gradient_hooks import WithNorms
from tests.lightning.test_manual_optimisation import GAN, Accumulating, Clipped

RECIPES: dict[str, type[L.LightningModule]] = {
    "GAN": GAN, "Accumulating": Accumulating, "Clipped": Clipped, "WithNorms": WithNorms,
}
AN_EPOCH: dict[str, Any] = {"accelerator": "ipu", "max_epochs": 1, **QUIET}


class Module(L.LightningModule):
    """Notes what it is given, and logs a mean and a sum over all processes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.seen: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch[1])
        return F.cross_entropy(self.layer(batch[0]), batch[1] % 2)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("mean", batch[1].float().mean(), sync_dist=True)
        self.log("total", batch[1].float().sum(), sync_dist=True, reduce_fx="sum")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def automatic(rank: int) -> dict[str, Any]:
    """Train with loaders that Lightning shares out, and ask the strategy for collectives."""
    torch.manual_seed(rank)  # each process begins with weights of its own
    data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16))
    trainer = L.Trainer(devices=1, num_sanity_val_steps=0, accumulate_grad_batches=2, **AN_EPOCH)
    module = Module()
    trainer.fit(module, DataLoader(data, batch_size=2), DataLoader(data, batch_size=2))
    strategy: Any = trainer.strategy
    found = {
        "rank": trainer.global_rank, "world": trainer.world_size, "replicas": strategy.replication_factor,
        "weight": module.layer.weight.flatten().tolist(), "seen": torch.cat(module.seen).tolist(),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "sum": float(strategy.reduce(torch.tensor(rank + 1.0), reduce_op="sum")),
        "average": float(strategy.reduce(torch.tensor(rank + 1), reduce_op="mean")),
        "any": strategy.reduce_boolean_decision(rank == 1, all=False),
        "all": strategy.reduce_boolean_decision(rank == 1, all=True),
        "gathered": strategy.all_gather(torch.tensor([rank])).flatten().tolist(),
        "said": strategy.broadcast({"by": rank}, src=1),
        "group": strategy.poptorch_models["train"].core().process_group is not None,
    }
    strategy.barrier()
    return found


def manual(rank: int, name: str) -> dict[str, Any]:
    """Train a recipe with two replicas in each process."""
    L.seed_everything(1, verbose=False)
    module = RECIPES[name]()
    if rank == 1:
        for parameter in module.parameters():
            parameter.data.add_(1.0)  # those of rank 0 are taken
    data = samples(96)
    trainer = L.Trainer(devices=2, use_distributed_sampler=False, **AN_EPOCH)
    trainer.fit(module, DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank, shuffle=False)))
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if "norm" in key}
    weights = {key: value.tolist() for key, value in module.state_dict().items()}
    return {"weights": weights, "steps": trainer.global_step, "metrics": metrics}


def launched(rank: int, name: str) -> dict[str, Any]:
    """Train by one of the recipes, or with loaders that Lightning shares out."""
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank)})
    return automatic(rank) if name == "automatic" else manual(rank, name)


BY_TORCHRUN = {
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "TORCHELASTIC_RUN_ID": "of tests", "TORCHELASTIC_RESTART_COUNT": "0",
}
SCENARIOS = {name: Scenario(partial(launched, name=name), (0, 1), BY_TORCHRUN) for name in ("automatic", *RECIPES)}
