"""torch.distributed.checkpoint: what one number of processes has saved, another number goes on from, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import torchipu
from torchipu import popdist, poptorch

ROOT = Path(__file__).parents[1]
UPDATES = 2  # between two checkpoints


class Classifier(torch.nn.Module):
    """Has parameters, buffers that training writes, and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.25),
            torch.nn.Linear(16, 4),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.body(x)
        return logits, F.cross_entropy(logits, labels)


def batches(begin: int, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the batches of some updates; those of an update are always the same."""
    made = []
    for update in range(begin, begin + count):
        generator = torch.Generator().manual_seed(update)
        made.append((torch.randn(12, 8, generator=generator), torch.randint(4, (12,), generator=generator)))
    return made


def state_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimiser)
    return {"model": weights, "optimiser": moments, "random": torch.get_rng_state()}


def train(source: str | None, target: str | None, begin: int, count: int = UPDATES) -> dict[str, Any]:
    """Train from a checkpoint, or from the beginning, and save; return losses and weights.

    Args:
        source: Folder of a checkpoint; None begins.
        target: Folder to save to; None saves nothing.
        begin: Updates that were made before.
        count: Updates to make.
    """
    torch.manual_seed(3 if source is None else 4)  # what is loaded must not be what was there
    model = Classifier()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True)
    # Each process trains by itself on the same data: all hold the same, and each writes a part of it.
    step = torchipu.TrainStep(model, optimiser, options=torchipu.Options(process_group="alone"))
    if source is not None:
        state = state_of(model, optimiser)
        dcp.load(state, checkpoint_id=source)
        set_state_dict(model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
        torch.set_rng_state(state["random"])
    losses = torch.stack([step(*batch)[1] for batch in batches(begin, count)])
    if target is not None:
        dcp.save(state_of(model, optimiser), checkpoint_id=target)
    return {"losses": losses, "model": model.state_dict(), "optimiser": optimiser.state_dict()["state"]}


def in_processes(number: int, folder: Path, *arguments: str) -> None:
    """Run `main` in so many processes, joined over gloo."""
    command = [sys.executable, "-m", "tests.test_distributed_checkpoint", str(number), str(folder), *arguments]
    processes = [
        subprocess.Popen([*command, str(rank)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
                         stderr=subprocess.PIPE, text=True)
        for rank in range(number)
    ]
    for process in processes:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error


def main(arguments: Sequence[str]) -> None:
    """Be one of the processes."""
    number, folder, source, target, begin, rank = arguments
    store = torch.distributed.FileStore(str(Path(folder) / f"store-{begin}"), int(number))
    torch.distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=int(number))
    found = train(source, target, int(begin))
    torch.save(found, Path(folder) / f"found-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture
def seeded() -> Any:
    """Leave the random numbers of other tests alone."""
    with torch.random.fork_rng():
        yield


def test_training_goes_on_bit_by_bit_over_one_two_and_one_process(tmp_path: Path, seeded: None) -> None:
    whole = train(None, None, 0, 3 * UPDATES)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    begun = train(None, first, 0)
    in_processes(2, tmp_path, first, second, str(UPDATES))
    middle = [torch.load(tmp_path / f"found-{rank}.pt", weights_only=True) for rank in range(2)]
    parts = {path.name for path in (tmp_path / "second").glob("*.distcp")}
    assert parts == {"__0_0.distcp", "__1_0.distcp"}
    ended = train(second, None, 2 * UPDATES)
    for rank in range(2):
        losses = torch.cat([begun["losses"], middle[rank]["losses"], ended["losses"]])
        assert torch.equal(losses, whole["losses"])
    torch.testing.assert_close(dict(ended["model"]), dict(whole["model"]), rtol=0, atol=0)
    torch.testing.assert_close(ended["optimiser"], whole["optimiser"], rtol=0, atol=0)
    assert not torch.equal(begun["model"]["body.0.weight"], ended["model"]["body.0.weight"])


def trainer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
    """Return a model, an optimiser of PopTorch and a training executor of theirs."""
    torch.manual_seed(seed)
    model = Classifier()
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=1e-2)
    options = poptorch.Options()
    options.randomSeed(5)
    return model, optimiser, poptorch.trainingModel(model, options, optimiser)


@pytest.mark.parametrize("whole", [False, True], ids=["in parts", "by one instance"])
def test_a_training_executor_goes_on_bit_by_bit(whole: bool, tmp_path: Path, seeded: None) -> None:
    _, optimiser, training = trainer(3)
    for batch in batches(0, UPDATES):
        training(*batch)
    file = tmp_path / "whole.pt"
    # The dictionaries of the executor and of its optimiser hold what the device has trained.
    state = {"model": training.state_dict(), "optimiser": optimiser.state_dict(), "random": training.rng_state}
    if whole:
        popdist.execute_on_instances({0}, torch.save, state, file)
    else:
        dcp.save(state, checkpoint_id=tmp_path / "parts")
        dcp_to_torch_save(tmp_path / "parts", file)
    expected = [training(*batch)[1] for batch in batches(UPDATES, UPDATES)]

    model, optimiser, training = trainer(4)
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    optimiser.load_state_dict(state["optimiser"])
    training.compile(*batches(0, 1)[0])
    training.rng_state = state["random"]
    found = [training(*batch)[1] for batch in batches(UPDATES, UPDATES)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert not torch.equal(expected[0], expected[1])


def test_a_checkpoint_of_another_model_is_refused_and_changes_nothing(tmp_path: Path, seeded: None) -> None:
    dcp.save({"model": torch.nn.Linear(3, 3).state_dict()}, checkpoint_id=tmp_path)
    model = Classifier()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((RuntimeError, dcp.api.CheckpointException), match=r"Missing key"):
        dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


if __name__ == "__main__":
    main(sys.argv[1:])
