"""Runs the device programs of small models op by op and vertex by vertex, beside eager PyTorch in float64.

    python -m tests.device.architectures                  # the forward of all 67, a training step of TRAINED
    python -m tests.device.architectures bert resnet18    # of these

``make machine`` is the same. Each has a process of its own, as many at once as there are CPUs and memory for. All of
it takes the better part of an hour.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerContext

import numpy as np
import torch
from rich.console import Console

import torchipu
from tests.device.trained import Trained
from tests.models.architectures.architecture import Architecture, Inputs
from tests.models.architectures.catalogue import ALL, PACKAGES, missing_libraries
from tests.models.architectures.comparison import quiet
from tests.models.architectures.precise import in_float64
from torchipu.device.machine import Machine
from torchipu.device.tiles.machine import TileMachine
from torchipu.emulation.eager import evaluate, evaluate_as_typed
from torchipu.emulation.loading import machine_of, wide
from torchipu.emulation.tiles import tile_machine
from torchipu.ir.graph import Tensor
from torchipu.ir.program import Executable

LIMIT = 1e-9
"""Of the error of a result over its norm, op by op: both sides compute in float64."""
TIMES, FLOOR = 8.0, 1e-6
"""The error of the tiles may be so many times that of the same ops in the types of the program, or so much."""
MOST_WHOLE = 0.05
"""Of the supersteps of all architectures, those in which one vertex computes an op on gathered operands."""
PROCESS_BYTES = 8 << 30
"""What an architecture may need: the memory of the tiles, and how vertices lie."""
TRAINED = (
    "bert", "gpt_neo", "llama", "mobilenetv2_100", "modernbert", "opt", "resnet18", "swin_tiny_patch4_window7_224",
    "t5", "vit_tiny_patch16_224",
)


class Loss(torch.nn.Module):
    """The loss of a module, with its inputs in order.

    Args:
        module: Takes its inputs by name, and gives the loss first.
        names: Of the inputs.
    """

    def __init__(self, module: torch.nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.module, self.names = module, tuple(names)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.module(**dict(zip(self.names, inputs, strict=True)))[0]
        return loss


@dataclass
class Run:
    """What an architecture gives.

    Attributes:
        error: Op by op in float64.
        typed: Op by op in the types of the program.
        on_tiles: Vertex by vertex.
        machine: Of tiles, after its run.
    """

    error: float
    typed: float
    on_tiles: float
    machine: TileMachine

    @property
    def is_right(self) -> bool:
        """Whether float32 explains the errors."""
        return self.error <= LIMIT and self.on_tiles <= max(TIMES * self.typed, FLOOR)


def made(architecture: Architecture) -> tuple[torch.nn.Module, Inputs]:
    """Return a module that has run before, and its inputs.

    In their first call models of transformers install hooks, under a lock that Dynamo does not enter.
    """
    module, inputs = architecture.new()
    with torch.no_grad():
        module.eval()(**inputs)
    return module.train(), inputs


def train(architecture: Architecture) -> Run:
    """Train an architecture for a step.

    Returns:
        With errors that are the norm of those of all weights over that of what they moved by.
    """
    module, inputs = made(architecture)
    options = torchipu.Options(allow_out_of_memory=True)
    with quiet():
        run = Trained(Loss(module, tuple(inputs)), partial(torch.optim.SGD, lr=1.0), options, tuple(inputs.values()))
    with in_float64():
        wanted = run.by_eager()
    before = {name: wide(parameter) for name, parameter in run.model.named_parameters()}
    moved = np.sqrt(sum(np.square(wanted[name] - before[name]).sum() for name in wanted))

    def error_of(machine: Machine) -> float:
        machine.run()
        found = run.weights(machine)
        return float(np.sqrt(sum(np.square(found[name] - wanted[name]).sum() for name in wanted)) / moved)

    tiles = run.tile_machine()
    typed = machine_of(run.executable, run.built, run.options, run.batch, 1, evaluate_as_typed)
    return Run(error_of(run.machine()), error_of(typed), error_of(tiles), tiles)


def infer(architecture: Architecture) -> Run:
    """Run the forward of an architecture.

    Returns:
        With errors that are the largest of a result over its norm.
    """
    module, inputs = made(architecture)
    module.eval()
    exact = copy.deepcopy(module).double()
    doubled = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    with in_float64(), torch.no_grad():
        loss, results = exact(**doubled)
    step = torchipu.InferenceStep(module, torchipu.Options(allow_out_of_memory=True))
    with quiet(), torch.no_grad():
        step.compile(**inputs)
    built, executable = step._built, step.compiled.executable
    assert built is not None
    given = tuple(inputs.values())
    output_of = dict(zip(built.graph.outputs, step.compiled.graph.outputs, strict=True))

    def error_of(machine: Machine) -> float:
        machine.run()
        found = {stream: values[0] for (stream, _), values in machine.results.items()}
        return max(
            relative(seen(output_of[leaf], found, executable), wide(value))
            for leaf, value in zip(built.capture.leaves, [loss, *results], strict=True) if isinstance(leaf, Tensor)
        )

    tiles = tile_machine(executable, built, step.options, given, 1, step.target)
    exactly, typed = (
        error_of(machine_of(executable, built, step.options, given, 1, how)) for how in (evaluate, evaluate_as_typed)
    )
    return Run(exactly, typed, error_of(tiles), tiles)


def seen(tensor: Tensor, found: Mapping[str, np.ndarray], executable: Executable) -> np.ndarray:
    """Return a result from what was streamed to the host, which may be another view of it."""
    if tensor.name in found:
        return found[tensor.name].reshape(tensor.shape)
    op = executable.views[tensor]
    return np.asarray(evaluate(op, [seen(op.inputs[0], found, executable)])[op.outputs.index(tensor)])


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the norm of the difference over that of what is wanted."""
    difference = found.reshape(wanted.shape).astype(np.float64) - wanted
    return float(np.linalg.norm(difference) / max(float(np.linalg.norm(wanted)), 1e-30))


@dataclass(frozen=True)
class Finding:
    """What a run of an architecture shows, without the run.

    Attributes:
        text: A line.
        is_right: Whether float32 explains the errors.
        supersteps: Of compute sets.
        whole: Those of them in which one vertex computes an op, by the op.
    """

    text: str
    is_right: bool
    supersteps: int = 0
    whole: Counter[str] = field(default_factory=Counter)


def finding(name: str, kind: str) -> Finding:
    """Run an architecture, by name, in a way of ``KINDS``."""
    torch.set_num_threads(1)
    began = time.monotonic()
    architecture = next(one for one in ALL if one.name == name)
    try:
        found = KINDS[kind](architecture)
    except Exception as raised:  # whatever a model or the machine raises is a finding
        return Finding(f"FAIL {name}, {kind}: {type(raised).__name__}: {raised}", is_right=False)
    text = (
        f"{'ok  ' if found.is_right else 'FAIL'} {name}, {kind}: {found.machine.supersteps} "
        f"compute sets, error {found.error:.1e}, in its types {found.typed:.1e}, on tiles {found.on_tiles:.1e}, "
        f"{sum(found.machine.whole.values())} whole, {time.monotonic() - began:.1f} s"
    )
    return Finding(text, found.is_right, found.machine.supersteps, Counter(found.machine.whole))


KINDS: Mapping[str, Callable[[Architecture], Run]] = {"forward": infer, "training": train}


def findings(asked: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """Run architectures side by side, each in a process of its own: one needs gigabytes, and leaves them behind.

    Args:
        asked: Names and ways.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torchipu.emulation.tiles", "tests.models.architectures.catalogue"])
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    at_once = max(1, min(len(os.sched_getaffinity(0)), memory // PROCESS_BYTES))
    with ThreadPoolExecutor(at_once) as threads:
        runs = [threads.submit(_apart, context, *one) for one in asked]
        for run in as_completed(runs):
            yield run.result()


def _apart(context: ForkServerContext, name: str, kind: str) -> Finding:
    """Run an architecture in a process of its own."""
    with ProcessPoolExecutor(1, context) as process:
        try:
            return process.submit(finding, name, kind).result()
        except BrokenProcessPool:
            return Finding(f"FAIL {name}, {kind}: its process ended, maybe for want of memory", is_right=False)


def main(names: list[str]) -> int:
    """Run architectures; 1 when any fails."""
    console, failed = Console(highlight=False), 0
    chosen = [architecture for architecture in ALL if not names or architecture.name in names]
    if any(architecture.package in missing_libraries() for architecture in chosen):
        print(f'{" and ".join(PACKAGES)} are needed: pip install -e ".[models]"', file=sys.stderr)
        return 2
    asked = [
        (one.name, kind) for one in chosen for kind in KINDS if kind == "forward" or one.name in TRAINED
    ]
    supersteps, whole = 0, Counter[str]()
    for found in findings(asked):
        failed += not found.is_right
        supersteps += found.supersteps
        whole.update(found.whole)
        console.print(found.text, markup=False, soft_wrap=True)
    share = whole.total() / max(supersteps, 1)
    console.print(f"{whole.total()} of {supersteps} compute sets ({share:.1%}) as one vertex on gathered operands:")
    console.print(", ".join(f"{name} {count}" for name, count in whole.most_common()) or "none", markup=False)
    failed += share > MOST_WHOLE
    console.print(f"{failed} failed" if failed else f"{len(chosen)} as eager")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
