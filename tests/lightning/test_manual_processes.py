"""Steps and gradients over two processes of two replicas are those of one CPU run on batches four times as large."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.lightning.runs import Run, loader
from tests.lightning.test_gradient_hooks import WithNorms
from tests.lightning.test_manual_optimisation import GAN, Accumulating, Clipped

PROGRAM = '''
import os, sys
import lightning as L, torch
from torch.utils.data import DataLoader, DistributedSampler
from tests.lightning import test_gradient_hooks, test_manual_optimisation
from tests.lightning.runs import samples

rank = int(os.environ["RANK"])
for name in sys.argv[2:]:
    L.seed_everything(1, verbose=False)
    module = (getattr(test_manual_optimisation, name, None) or getattr(test_gradient_hooks, name))()
    if rank == 1:
        for parameter in module.parameters():
            parameter.data.add_(1.0)  # those of rank 0 are taken
    data = samples(96)
    trainer = L.Trainer(
        accelerator="ipu", devices=2, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )
    trainer.fit(module, DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, rank, shuffle=False)))
    metrics = {key: float(value) for key, value in trainer.callback_metrics.items() if "norm" in key}
    found = {"weights": module.state_dict(), "steps": trainer.global_step, "metrics": metrics}
    torch.save(found, os.path.join(sys.argv[1], f"{name}.{rank}.pt"))
'''
RECIPES = {"GAN": GAN, "Accumulating": Accumulating, "Clipped": Clipped, "WithNorms": WithNorms}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program),
         str(folder), *RECIPES],
        capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", RECIPES)
def test_processes_train_as_one_batch_of_their_size(folder: Path, name: str) -> None:
    cpu = Run("cpu", RECIPES[name], lambda: loader(96, batch_size=16), max_epochs=1)
    ranks = [torch.load(folder / f"{name}.{rank}.pt") for rank in range(2)]
    assert ranks[0]["steps"] == cpu.trainer.global_step
    norms = {key: value for key, value in cpu.metrics.items() if "norm" in key}
    assert ranks[1]["metrics"] == pytest.approx(norms, rel=1e-3)
    assert bool(norms) == (name == "WithNorms")
    for key, value in cpu.module.state_dict().items():
        torch.testing.assert_close(ranks[0]["weights"][key], value, rtol=1e-3, atol=2e-5, msg=key)
        assert torch.equal(ranks[0]["weights"][key], ranks[1]["weights"][key])
