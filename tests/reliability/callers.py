"""Threads that compile and call different models at once, held to the same calls made one after another.

``python -m tests.reliability callers --size 1000`` makes that many calls in each of eight threads.
"""

from __future__ import annotations

import hashlib
import random
import threading
import types
from collections.abc import Callable, Iterator

import torch
from torch import nn

import torchipu
import torchipu.poptorch as poptorch
from torchipu import backend

THREADS = 8
FRESH_EVERY = 40
"""Every so many calls, a thread gives up a model and compiles another one."""
HELD = 3
"""Models that a thread has at a time."""
Call = Callable[[torch.Tensor], list[torch.Tensor]]


class Attention(nn.Module):
    """Self-attention with a normalisation, `[N, 6, C]` to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of input and what it attends to."""
        query, key, value = self.into(self.norm(x)).chunk(3, dim=-1)
        return x + nn.functional.scaled_dot_product_attention(query, key, value)


MODELS: tuple[tuple[Callable[[int], nn.Module], Callable[[int], tuple[int, ...]]], ...] = (
    (lambda width: nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.Linear(24, 5)), lambda width: (6, width)),
    (lambda width: nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                                 nn.Linear(16 * width, 5)), lambda width: (4, 3, 8, 8)),
    (Attention, lambda width: (3, 6, width)),
    (lambda width: nn.Sequential(nn.Linear(width, width), nn.Softmax(-1), nn.BatchNorm1d(width)),
     lambda width: (7, width)),
)
"""What makes a model of a width, and the shape of its input."""


class MeanSquare(nn.Module):
    """A model with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the squares, a loss."""
        returned: torch.Tensor = self.model(x).square().mean()
        return returned


def _compile(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Compile a model in a function whose code is its own: Dynamo would find another model's program by its code."""
    def forward(x: torch.Tensor) -> torch.Tensor:
        returned: torch.Tensor = model(x)
        return returned

    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__)
    return torch.compile(own, backend="ipu", fullgraph=True, dynamic=False)


def _compiled(model: nn.Module) -> Call:
    compiled = _compile(model.eval())

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            return [compiled(x)]

    return call


def _compiled_training(model: nn.Module) -> Call:
    loss = _compile(MeanSquare(model))
    return lambda x: list(torch.autograd.grad(loss(x), list(model.parameters())))


def _inference_step(model: nn.Module) -> Call:
    step = torchipu.InferenceStep(model.eval())
    return lambda x: [step(x)]


def _train_step(model: nn.Module) -> Call:
    step = torchipu.TrainStep(MeanSquare(model), torch.optim.SGD(model.parameters(), lr=0.05))
    return lambda x: [step(x), *(value.detach().clone() for value in model.state_dict().values())]


def _poptorch(model: nn.Module) -> Call:
    executor = poptorch.inferenceModel(model.eval(), poptorch.Options().showCompilationProgressBar(False))
    return lambda x: [executor(x)]


DOORS = (_compiled, _compiled_training, _inference_step, _train_step, _poptorch)
THROUGH_DYNAMO = (_compiled, _compiled_training)


def _fresh(chance: random.Random) -> tuple[Call, tuple[int, ...], bool]:
    """Return a compiled model, the shape of its input, and whether Dynamo has traced it."""
    make, shape_of = chance.choice(MODELS)
    width, door = chance.choice((8, 12, 16)), chance.choice(DOORS)
    model, drawn = make(width), torch.Generator().manual_seed(chance.randrange(1 << 30))
    for parameter in model.parameters():  # those of the module came from a generator that all threads share
        nn.init.normal_(parameter, 0.0, 0.3, generator=drawn)
    shape = shape_of(width)
    return door(model), shape, door in THROUGH_DYNAMO


def calls_of(thread: int, count: int) -> Iterator[bytes]:
    """Yield a digest of what each call of a thread gives, and b"traced" before the first of a model that Dynamo traces.

    Args:
        thread: Decides models, their weights and their inputs.
        count: How many calls.
    """
    chance, drawn = random.Random(thread), torch.Generator().manual_seed(thread)
    held = [_fresh(chance) for _ in range(HELD)]
    for number in range(count):
        place = chance.randrange(HELD)
        if number % FRESH_EVERY == FRESH_EVERY - 1:
            held[place] = _fresh(chance)
        call, shape, is_traced = held[place]
        results = call(torch.randn(shape, generator=drawn))
        if is_traced:
            yield b"traced"
            held[place] = call, shape, False
        yield hashlib.blake2b(b"".join(value.detach().numpy().tobytes() for value in results)).digest()


def run(size: int, threads: int = THREADS) -> dict[str, int]:
    """Make the calls of all threads at once and then one after another, and return how many differ.

    Args:
        size: Calls of a thread.
        threads: How many.

    Returns:
        calls: How many were made at once.
        compilations: How many models were compiled meanwhile through Dynamo.
        wrong: Calls whose results are not those of the same calls made serially.
        failed: Threads that raised or did not end.
        eager: Models that Dynamo handed to nobody.
    """
    found: list[list[bytes]] = [[] for _ in range(threads)]
    failed = list[BaseException]()
    start = threading.Barrier(threads)

    def work(thread: int) -> None:
        try:
            start.wait(60)
            found[thread].extend(calls_of(thread, size))
        except BaseException as error:
            failed.append(error)
            raise

    graphs = backend.COUNTS.graphs
    workers = [threading.Thread(target=work, args=(thread,), daemon=True) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120 + size * threads)
    stuck = sum(worker.is_alive() for worker in workers)
    graphs = backend.COUNTS.graphs - graphs
    serial = [list(calls_of(thread, size)) for thread in range(threads)]
    traced = sum(digests.count(b"traced") for digests in found)
    pairs = zip(found, serial, strict=True)
    return {
        "threads": threads, "calls": sum(len(digests) for digests in found) - traced, "compilations": traced,
        "wrong": sum(a != b for mine, alone in pairs for a, b in zip(mine, alone, strict=False)),
        "failed": len(failed) + stuck, "eager": traced - graphs,
    }
