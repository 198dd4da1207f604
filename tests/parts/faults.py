"""What goes wrong on one of two processes; run by ``tests.parts.over_processes``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import torchipu
from tests.parts.cases import SIZE, Stack, digest, samples

SECONDS_OF_SILENCE = 8.0


def step_of(model: nn.Module | None = None, **options: Any) -> torchipu.TrainStep:
    torch.manual_seed(1)
    model = model or Stack()
    return torchipu.TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), torchipu.Options(**{
            "host_threads": 1, "execution": "sharded", "gradient_accumulation": 4,
            "pipeline_group": dist.group.WORLD if dist.is_initialized() else None,
        } | options),
    )


def told(call: Callable[[], Any]) -> dict[str, Any]:
    """Return what a call raises, and how long it takes to."""
    begin = time.perf_counter()
    try:
        call()
    except BaseException as error:
        return {"kind": type(error).__name__, "text": str(error), "seconds": time.perf_counter() - begin}
    return {"kind": "", "text": "", "seconds": time.perf_counter() - begin}


def state(step: torchipu.TrainStep) -> list[str]:
    optimizer = [str(value) for entry in step.optimizer.state.values() for value in entry.values()]
    return [*(digest(value) for value in step.model.state_dict().values()), *optimizer]


def other_options(rank: int) -> dict[str, Any]:
    return told(lambda: step_of(max_grad_norm=1.0 if rank else 2.0, loss_scaling=2.0)(*samples(32)))


def other_inputs(rank: int) -> dict[str, Any]:
    return told(lambda: step_of()(*samples(32 if rank else 16)))


def other_model(rank: int) -> dict[str, Any]:
    return told(lambda: step_of(Stack(norm="layer" if rank else ""))(*samples(32)))


def other_call(rank: int) -> dict[str, Any]:
    step = step_of()
    step(*samples(32))
    before = state(step)
    found = told(step.gather if rank else lambda: step(*samples(32)))
    return found | {"kept": before == state(step)}


def no_loss(rank: int) -> dict[str, Any]:
    class Lossless(Stack):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            found, loss = super().forward(x, y)
            return (found, loss) if dist.get_rank() == 0 else found

    return told(lambda: step_of(Lossless())(*samples(32)))


def bad_batch(rank: int) -> dict[str, Any]:
    return told(lambda: step_of()(*samples(30)))


def bare_weights(rank: int) -> dict[str, Any]:
    model = Stack()
    model.blocks[2].to("meta")  # process 1 has it, and needs it
    return told(lambda: step_of(model)(*samples(32)))


def shared_buffers(rank: int) -> dict[str, Any]:
    """Replicas that are to have the same buffers, which the model writes in the part of process 1 alone."""
    model = Stack()
    norm = nn.Sequential(nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE))
    model.blocks[3] = torchipu.BeginBlock(norm, "B3", ipu_id=3)
    return told(lambda: step_of(model, replicas=2)(*samples(32)))


def too_many_ipus(rank: int) -> dict[str, Any]:
    return told(lambda: step_of(ipus_per_process=1)(*samples(32)))


def uneven_ipus(rank: int) -> dict[str, Any]:
    return told(lambda: step_of(Stack(3))(*samples(32)))


class Gap(nn.Module):
    """Leaves IPU 1 out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torchipu.BeginBlock(nn.Linear(SIZE, SIZE), "first", ipu_id=0)
        self.last = torchipu.BeginBlock(nn.Linear(SIZE, 5), "last", ipu_id=2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.last(self.first(x)), y)


def idle_process(rank: int) -> dict[str, Any]:
    """Two processes whose IPUs 0 and 1, 2 and 3 are, and a model on IPUs 2 and 3 alone."""
    model = Gap()
    model.first = torchipu.BeginBlock(nn.Linear(SIZE, SIZE), "other", ipu_id=2)
    return told(lambda: step_of(model, ipus_per_process=2)(*samples(32)))


def _trapped(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], bad: tuple[torch.Tensor, ...], *, alone: bool,
) -> Any:
    if alone:
        step = step_of(model, pipeline_group=None)
        return [digest(step(*inputs)[-1]) for _ in range(2)][-1]
    step = step_of(model)
    step(*inputs)
    before = state(step)
    found = told(lambda: step(*bad))
    found["kept"] = before == state(step)
    found["then"] = digest(step(*inputs)[-1])
    return found


def bad_label(rank: int, *, alone: bool = False) -> Any:
    """A label out of range in the third micro-batch: process 1 computes the loss."""
    x, y = samples(32)
    wrong = y.clone()
    wrong[20] = 99
    return _trapped(Stack(), (x, y), (x, wrong), alone=alone)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torchipu.BeginBlock(nn.Embedding(10, SIZE), "words", ipu_id=0)
        self.head = torchipu.BeginBlock(nn.Linear(SIZE, 5), "head", ipu_id=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.head(self.embedding(x))
        return found, nn.functional.cross_entropy(found, y)


def bad_word(rank: int, *, alone: bool = False) -> Any:
    """A token out of range in the last micro-batch: process 0 looks it up."""
    words, labels = torch.arange(16) % 10, torch.arange(16) % 5
    wrong = words.clone()
    wrong[15] = 10
    return _trapped(Words(), (words, labels), (wrong, labels), alone=alone)


def interrupted(rank: int) -> dict[str, Any]:
    """Ctrl-C on process 1 in the middle of a call."""
    step = step_of(gradient_accumulation=4, device_iterations=16000)
    inputs = samples(4 * 16000)
    step.compile(*inputs)
    before = state(step)
    if rank:
        signal.signal(signal.SIGALRM, lambda number, frame: os.kill(os.getpid(), signal.SIGINT))
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    found = told(lambda: step(*inputs))
    return found | {"kept": before == state(step), "then": digest(step_of()(*samples(32))[-1])}


def _broken(rank: int, act: Callable[[], None]) -> dict[str, Any]:
    """Process 1 does something in its third micro-batch; process 0 says what it sees, twice."""
    step = step_of()
    step(*samples(32))
    before = state(step)
    if rank:
        peers = step._parts.processes.peers
        plain, sent = peers.send, []

        def send(message: torch.Tensor, to: int, tag: int) -> Any:
            sent.append(tag)
            if len(sent) == 4:
                act()
            return plain(message, to, tag)

        peers.send = send
    found = told(lambda: step(*samples(32)))
    return found | {"kept": before == state(step), "again": told(lambda: step(*samples(32)))}


def killed(rank: int) -> dict[str, Any]:
    return _broken(rank, lambda: os.kill(os.getpid(), signal.SIGKILL))


def silent(rank: int) -> dict[str, Any]:
    return _broken(rank, lambda: time.sleep(SECONDS_OF_SILENCE + 4))


HARMLESS = (
    other_options, other_inputs, other_model, other_call, no_loss, bad_batch, bare_weights, shared_buffers,
    too_many_ipus, uneven_ipus, idle_process, bad_label, bad_word, interrupted,
)
