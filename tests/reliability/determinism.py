"""The same bytes, whatever runs a model: ``python -m tests.reliability determinism --size 200``.

Of so many models, half are networks that train for two steps, half random programs that are differentiated. All are run
under every condition of `CONDITIONS`; what differs from the first condition by a single byte counts.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

import torchipu
from tests.fuzz.generate import differentiate, generate
from torchipu.backend import ipu_backend

MICRO_BATCHES, SAMPLES = 4, 24


@dataclass(frozen=True, slots=True)
class Condition:
    """What runs models.

    Attributes:
        threads: Of the host.
        is_placed: Whether networks lie on two IPUs, as a pipeline or sharded.
        environment: Of the process.
        kinds: Which models it is for.
        beside: The condition that gives the bytes to compare with; empty for the first.
    """

    threads: int = 1
    is_placed: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("network", "program")
    beside: str = "one thread"


_CACHED = {"TORCHIPU_CACHE": "1"}
CONDITIONS = {
    "one thread": Condition(),
    "once more": Condition(environment={"PYTHONHASHSEED": "11"}),
    "2 threads": Condition(2, environment={"PYTHONHASHSEED": "12"}),
    "3 threads": Condition(3),
    "7 threads": Condition(7),
    "another placement": Condition(is_placed=True, kinds=("network",)),
    "cold cache": Condition(environment=_CACHED),
    "warm cache": Condition(environment=_CACHED),
    "AVX2": Condition(environment={"TORCHIPU_ISA": "avx2"}, kinds=("pointwise",)),
    "AVX-512": Condition(environment={"TORCHIPU_ISA": "avx512"}, kinds=("pointwise",), beside="AVX2"),
}
"""By name, in the order in which they run. Each is a process of its own."""


class Network(nn.Module):
    """Layers in a row, drawn by a seed, from `[N, width]` to a loss; sizes are those that threads share out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        self.width = chance.choice((33, 64, 130))
        torch.manual_seed(seed)
        self.layers = nn.Sequential(*(self._layer(chance) for _ in range(chance.randint(3, 6))))

    def _layer(self, chance: random.Random) -> nn.Module:
        width = self.width
        return chance.choice((
            lambda: nn.Sequential(nn.Linear(width, width), nn.GELU()),
            lambda: nn.LayerNorm(width),
            lambda: nn.Sequential(nn.Unflatten(1, (1, width)), nn.Conv1d(1, 8, 3, padding=1), nn.ReLU(),
                                  nn.Conv1d(8, 1, 3, padding=1), nn.Flatten()),
            lambda: nn.Sequential(nn.BatchNorm1d(width), nn.Tanh()),
            lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(width, width)),
            lambda: nn.Sequential(nn.Linear(width, width), nn.Softmax(-1)),
        ))()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        return nn.functional.cross_entropy(self.layers(x), labels)


def _train(seed: int, condition: Condition) -> list[torch.Tensor]:
    model, placed = Network(seed), {}
    if condition.is_placed:
        torchipu.BeginBlock(model.layers[0], "first", 0)
        torchipu.BeginBlock(model.layers[len(model.layers) // 2], "second", 1)
        placed = {"execution": ("pipelined", "sharded")[seed % 2]}
    options = torchipu.Options(
        host_threads=condition.threads, gradient_accumulation=MICRO_BATCHES, seed=seed, output_mode="all",
        allow_out_of_memory=True, **placed,
    )
    optimiser = (torch.optim.SGD, torch.optim.AdamW)[seed % 2](model.parameters(), lr=0.01)
    step, drawn = torchipu.TrainStep(model, optimiser, options), torch.Generator().manual_seed(seed)
    x = torch.randn(MICRO_BATCHES * SAMPLES, model.width, generator=drawn)
    labels = torch.randint(model.width, (len(x),), generator=drawn)
    losses = [step(x, labels) for _ in range(2)]
    return [*losses, *model.state_dict().values()]


def _differentiate(seed: int, condition: Condition) -> list[torch.Tensor]:
    program = generate(seed)
    tensors, function = program.tensors(), program.function()

    class Module(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
            return function(*tensors)

    outcome = differentiate(ipu_backend(Module(), list(tensors), options={"host_threads": condition.threads}), tensors)
    given = [value for value in (*outcome.values, *outcome.gradients) if isinstance(value, torch.Tensor)]
    return [value.detach().contiguous() for value in given]


_POINTWISE: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    lambda x, y: x * y + 0.5, lambda x, y: x / (y.abs() + 1), lambda x, y: torch.exp(-x.abs()) * y,
    lambda x, y: torch.tanh(x) - torch.sigmoid(y), lambda x, y: nn.functional.gelu(x) + y,
    lambda x, y: torch.where(x > y, x.sqrt(), y.sin()), lambda x, y: nn.functional.dropout(x, 0.4) * y,
    lambda x, y: torch.rand_like(x) + y, lambda x, y: torch.atan2(x, y) + torch.log1p(x.abs()),
    lambda x, y: (x.half() * y.half()).float(), lambda x, y: torch.erf(x) ** 2 + torch.rsqrt(y.abs() + 1),
)


def _map(seed: int, condition: Condition) -> list[torch.Tensor]:
    """Run a chain without sums: their order is the vectors' own, and all else is defined."""
    chance, drawn = random.Random(seed), torch.Generator().manual_seed(seed)
    chosen = [chance.choice(_POINTWISE) for _ in range(4)]
    x, y = (torch.randn(chance.choice((1, 7, 4099)), generator=drawn) for _ in range(2))
    if len(x) != len(y):
        y = torch.randn(len(x), generator=drawn)

    class Module(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            for function in chosen:
                x = function(x, y)
            return [x]

    return list(ipu_backend(Module(), [x, y], options={"host_threads": condition.threads, "seed": seed})(x, y))


KINDS = {"network": _train, "program": _differentiate, "pointwise": _map}


def digests(kind: str, count: int, condition: Condition) -> list[str]:
    """Return a digest of what each of so many models of a kind gives under a condition, or its error."""
    found = []
    for seed in range(count):
        try:
            values = KINDS[kind](seed, condition)
            flat = [value.detach().contiguous().view(-1).view(torch.uint8) for value in values]
            found.append(hashlib.blake2b(torch.cat(flat).numpy().tobytes(), digest_size=16).hexdigest())
        except Exception as error:
            found.append(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    return found


def main(name: str, count: int) -> None:
    """Print the digests under a condition as JSON; for a process of its own."""
    condition = CONDITIONS[name]
    print(json.dumps({kind: digests(kind, count, condition) for kind in condition.kinds}))


def _run_under(name: str, count: int, cache: str) -> dict[str, list[str]]:
    environment = {"TORCHIPU_CACHE": "0", "TORCHIPU_CACHE_DIR": cache} | CONDITIONS[name].environment
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.reliability.determinism", name, str(count)],
        env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(size: int) -> dict[str, int]:
    """Run so many models under all conditions.

    Returns:
        models, conditions, comparisons: How many.
        differ: Comparisons in which a byte differs.
        refused: Models that are refused, under all conditions in the same words.
    """
    count = max(1, size // 2)
    with tempfile.TemporaryDirectory() as cache:
        found = {name: _run_under(name, count, cache) for name in CONDITIONS}
    comparisons, differ = compare(found)
    for words in differ:
        print(words, flush=True)
    refused = sum(" " in digest for digests in found["one thread"].values() for digest in digests)
    return {"models": 2 * count, "conditions": len(CONDITIONS), "comparisons": comparisons, "differ": len(differ),
            "refused": refused}


def compare(found: dict[str, dict[str, list[str]]]) -> tuple[int, list[str]]:
    """Return how many digests were held to those of the condition beside theirs, and what differs.

    Args:
        found: Digests by condition and kind of model.
    """
    comparisons, differ = 0, list[str]()
    for name, by_kind in found.items():
        beside = found[CONDITIONS[name].beside]
        for kind, mine in by_kind.items():
            if name == CONDITIONS[name].beside or kind not in beside:
                continue
            comparisons += len(mine)
            pairs = enumerate(zip(mine, beside[kind], strict=True))
            differ += [f"{kind} {seed} under {name}: {a}, not {b}" for seed, (a, b) in pairs if a != b]
    return comparisons, differ


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
