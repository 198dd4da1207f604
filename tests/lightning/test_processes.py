"""Two processes under one Trainer: weights of the first, shards of the loaders, metrics and decisions of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = '''
import json, os, sys
import lightning as L, torch, torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
torch.manual_seed(rank)  # each process begins with weights of its own


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch[1])
        return F.cross_entropy(self.layer(batch[0]), batch[1] % 2)

    def validation_step(self, batch, batch_idx):
        self.log("mean", batch[1].float().mean(), sync_dist=True)
        self.log("total", batch[1].float().sum(), sync_dist=True, reduce_fx="sum")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


data = TensorDataset(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16))
trainer = L.Trainer(
    accelerator="ipu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, num_sanity_val_steps=0, accumulate_grad_batches=2,
)
module = Module()
trainer.fit(module, DataLoader(data, batch_size=2), DataLoader(data, batch_size=2))
strategy = trainer.strategy
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
with open(os.path.join(sys.argv[1], f"{rank}.json"), "w") as file:
    json.dump(found, file)
'''


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program),
         str(folder)],
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(2)]


def test_all_begin_with_the_weights_of_the_first_and_sum_their_gradients(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for update in range(2):
        optimizer.zero_grad()
        for rank in ranks:
            for batch in range(2):
                labels = torch.tensor(rank["seen"][4 * update + 2 * batch :][:2])
                (torch.nn.functional.cross_entropy(layer(x[labels]), labels % 2) / 4).backward()
        optimizer.step()
    assert ranks[0]["weight"] == pytest.approx(layer.weight.flatten().tolist(), abs=1e-6)
    assert ranks[1]["weight"] == ranks[0]["weight"]


def test_loaders_are_shared_and_each_sample_is_seen_once(ranks: list[dict[str, Any]]) -> None:
    assert sorted(ranks[0]["seen"] + ranks[1]["seen"]) == list(range(16))
    assert [rank["world"] for rank in ranks] == [2, 2]
    assert [rank["replicas"] for rank in ranks] == [1, 1]


def test_metrics_are_those_of_all(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["metrics"]["mean"] == pytest.approx(7.5)
        assert rank["metrics"]["total"] == pytest.approx(120)


def test_collectives_of_the_strategy(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert (rank["sum"], rank["average"]) == (3.0, 1.5)
        assert (rank["any"], rank["all"]) == (True, False)
        assert rank["gathered"] == [0, 1]
        assert rank["said"] == {"by": 1}


def test_programs_of_training_are_given_the_group(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["group"] for rank in ranks)
