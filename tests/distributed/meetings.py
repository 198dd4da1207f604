"""Processes that form a group, or fail to; run by ``tests.distributed.forked``."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import poptorch
import torch
import torch.distributed as dist

from tests.distributed.forked import Scenario
from tests.poptorch.models import Classifier, batch
from torchipu.distributed.group import end, form

torch.set_num_threads(1)  # what a process does in several threads cannot go on in a fork of it
poptorch.trainingModel(Classifier()).compile(*batch(4))  # imports much, which all scenarios then have

SECONDS = 10.0
"""How long a process waits for others: more than all scenarios take to begin, side by side on a busy machine."""
AT_A_PORT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "{port}"}


def total(group: Any) -> list[float]:
    value = torch.tensor([group.rank() + 1.0])
    dist.all_reduce(value, group=group)
    return value.tolist()


def meet(rank: int, size: int = 2, **more: Any) -> Any:
    return total(form(rank, size, timeout=SECONDS * 2, **more))


def meet_at_file(rank: int) -> Any:
    return meet(rank, store="meeting")


def meet_twice(rank: int) -> Any:
    first = meet_at_file(rank)
    assert form(rank, 2) is dist.group.WORLD  # the one that is there
    end()
    assert not dist.is_initialized()
    again = form(rank, 2, store="again")
    second = total(again)
    end()
    Path(f"ended {rank}").touch()
    while not Path(f"ended {1 - rank}").exists():
        pass
    return [first, second, sorted(path.name for path in Path().iterdir() if not path.match("ended *"))]


def meet_after_a_crash(rank: int) -> Any:
    """Find the store of a run that ended without removing it, in which everybody had come."""
    if rank == 1:
        old = dist.FileStore(os.path.abspath("meeting.old"), 2)
        old.set("came/1", '["x", 2]')
        old.set("seen", '{"0": ["y", 2], "1": ["x", 2]}')
        Path("meeting").write_text(f"torchipu store: {os.path.abspath('meeting.old')}")
        Path("written").touch()
        return meet_at_file(rank)
    while not Path("written").exists():
        pass
    return meet_at_file(rank)


def come_to_port(rank: int) -> Any:
    return form(rank, 3, timeout=SECONDS)


def come_to_file(rank: int) -> Any:
    return form(rank, 3, store="meeting", timeout=SECONDS)


def count_differently(rank: int) -> Any:
    return form(rank, 2 + rank, timeout=SECONDS)


def come_to_a_taken_port(rank: int) -> Any:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        os.environ["MASTER_PORT"] = str(other.getsockname()[1])
        return form(rank, 2, timeout=SECONDS)


def take_a_note_for_a_store(rank: int) -> Any:
    Path("meeting").write_text("buy milk")
    try:
        form(rank, 1 + rank, store="meeting", timeout=SECONDS)
    finally:
        assert Path("meeting").read_text() == "buy milk"


def disagree_with_the_default_group(rank: int) -> Any:
    meet_at_file(rank)
    return form(1 - rank, 2)


def train(rank: int, seed: int, size: int = 16) -> Any:
    options = poptorch.Options().randomSeed(seed)
    options.Distributed.configureProcessId(rank, 2).setFileStore("meeting")
    x, y = batch(size)
    data = torch.utils.data.TensorDataset(x, y)
    loader = poptorch.DataLoader(options, data, batch_size=4, shuffle=True)
    model = Classifier()
    training = poptorch.trainingModel(model, options)
    for x, y in loader:
        training(x, y)
    inference = poptorch.inferenceModel(model, poptorch.Options())
    inference(x)
    groups = [executor._executable.options.process_group for executor in (training, inference)]
    return [groups[0] is dist.group.WORLD, groups[1]]


def draw_a_seed(rank: int) -> Any:
    options = poptorch.Options()
    options.Distributed.configureProcessId(rank, 2).setFileStore("meeting")
    training = poptorch.trainingModel(Classifier(), options)
    training(*batch(4))
    return training.random_seed


def train_with_a_seed_on_one_process(rank: int) -> Any:
    options = poptorch.Options()
    options.Distributed.configureProcessId(rank, 2).setFileStore("meeting")
    if rank == 0:
        options.randomSeed(3)
    return poptorch.trainingModel(Classifier(), options)(*batch(4))


def train_without_a_meeting_place(rank: int) -> Any:
    options = poptorch.Options()
    options.Distributed.configureProcessId(rank, 2)
    return poptorch.trainingModel(Classifier(), options)(*batch(4))


SCENARIOS = {
    "port": Scenario(meet, (0, 1), AT_A_PORT),
    "file": Scenario(meet_twice, (0, 1)),
    "crash": Scenario(meet_after_a_crash, (0, 1)),
    "absent_at_port": Scenario(come_to_port, (0, 2), AT_A_PORT),
    "absent_at_file": Scenario(come_to_file, (0, 2)),
    "first_absent": Scenario(come_to_port, (1,), AT_A_PORT),
    "counts": Scenario(count_differently, (0, 1), AT_A_PORT),
    "counts_at_file": Scenario(lambda rank: form(rank, 3 - rank, store="meeting", timeout=SECONDS), (0, 1)),
    "twice": Scenario(come_to_port, (0, 1, 1), AT_A_PORT),
    "taken_port": Scenario(come_to_a_taken_port, (0,), {"MASTER_ADDR": "127.0.0.1"}),
    "no_host": Scenario(come_to_port, (0,), {"MASTER_ADDR": "nowhere.invalid"}),
    "nowhere": Scenario(come_to_port, (0,)),
    "foreign_file": Scenario(take_a_note_for_a_store, (1,)),
    "default_group": Scenario(disagree_with_the_default_group, (0, 1)),
    "mpirun": Scenario(meet, (0, 1), {
        "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0",
        "PMIX_NAMESPACE": "job {port}",
    }),
    "seconds": Scenario(lambda rank: form(rank, 2), (0,), {"TORCHIPU_INIT_TIMEOUT": "soon"}),
    "same_seed": Scenario(lambda rank: train(rank, 3), (0, 1)),
    "other_seed": Scenario(lambda rank: train(rank, 3 + rank), (0, 1)),
    "no_seed": Scenario(draw_a_seed, (0, 1)),
    "seed_on_one": Scenario(train_with_a_seed_on_one_process, (0, 1)),
    "other_length": Scenario(lambda rank: train(rank, 3, 16 + 8 * rank), (0, 1)),
    "poptorch_nowhere": Scenario(train_without_a_meeting_place, (0,)),
}
