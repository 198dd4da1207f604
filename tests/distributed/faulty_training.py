"""A small training for ``poprun`` in which one instance meets with a fault at a given moment.

The fault, its moment and its instance are in the variables ``FAULT``, ``FAULT_MOMENT`` and ``FAULT_RANK``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

RANK = os.environ["RANK"]
EPOCHS, STEPS = 2, 4


def strike(moment: str) -> None:
    """Meet with the fault, if this is its moment and its instance."""
    if moment != os.environ["FAULT_MOMENT"] or os.environ["FAULT_RANK"] != RANK:
        return
    Path("struck").write_text(str(time.time()))
    fault = os.environ["FAULT"]
    if fault == "exception":
        raise ValueError("the fault of this test")
    os.kill(os.getpid(), getattr(signal, f"SIG{fault}"))


strike("start")

import popdist  # noqa: E402
import popdist.poptorch  # noqa: E402
import poptorch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        strike("compile")
        out = self.layer(x)
        return out, torch.nn.functional.mse_loss(out, y)


def save(training: poptorch.PoplarExecutor, epoch: int) -> None:
    replace = os.replace

    def strike_first(*arguments: Any, **keywords: Any) -> None:
        strike("save")  # all is written, and nothing is where it belongs
        replace(*arguments, **keywords)

    if epoch:
        os.replace = strike_first
    training.save("checkpoint.poptorch")


def main() -> None:
    strike("init")
    popdist.init()
    options = popdist.poptorch.Options().randomSeed(1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
    model = Model()
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = poptorch.DataLoader(options, data, batch_size=64 // STEPS // popdist.getNumInstances(), shuffle=True)
    training.compile(*next(iter(loader)))
    strike("first step")
    for epoch in range(EPOCHS):
        for step, (x, y) in enumerate(loader):
            if (epoch, step) == (1, 2):
                strike("mid epoch")
            training(x, y)
        popdist.execute_on_instances({0}, save, training, epoch)
        if epoch and RANK != "0":
            strike("save")
        dist.barrier()
    print(f"trained {RANK}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
