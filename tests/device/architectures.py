"""Runs the device programs of small models on the machine, beside eager PyTorch in float64.

    python -m tests.device.architectures                  # the forward of all 67, a training step of TRAINED
    python -m tests.device.architectures bert resnet18    # of these

``make machine`` is the same. Ops are computed one by one: all of it takes about a quarter of an hour.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from rich.console import Console

import torchipu
from tests.device.trained import Trained
from tests.models.architectures.architecture import Architecture
from tests.models.architectures.catalogue import ALL, PACKAGES, missing_libraries
from tests.models.architectures.comparison import quiet
from tests.models.architectures.precise import in_float64
from torchipu.emulation.eager import evaluate
from torchipu.emulation.loading import machine_of, wide
from torchipu.ir.graph import Tensor
from torchipu.ir.program import Executable

LIMIT = 1e-9
"""Of the error of a result over its norm: both sides compute in float64."""
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


def error_of_training(architecture: Architecture) -> tuple[float, int]:
    """Train an architecture for a step on the machine.

    Returns:
        The norm of the error of all weights over that of what they moved by, and how many compute sets ran.
    """
    module, inputs = architecture.new()
    options = torchipu.Options(allow_out_of_memory=True)
    with quiet():
        run = Trained(Loss(module, tuple(inputs)), partial(torch.optim.SGD, lr=1.0), options, tuple(inputs.values()))
    machine = run.machine()
    machine.run()
    with in_float64():
        wanted = run.by_eager()
    found = run.weights(machine)
    before = {name: wide(parameter) for name, parameter in run.model.named_parameters()}
    error = np.sqrt(sum(np.square(found[name] - wanted[name]).sum() for name in wanted))
    moved = np.sqrt(sum(np.square(wanted[name] - before[name]).sum() for name in wanted))
    return float(error / moved), machine.supersteps


def error_of(architecture: Architecture) -> tuple[float, int]:
    """Run the forward of an architecture on the machine.

    Returns:
        The largest error of a result over its norm, and how many compute sets ran.
    """
    module, inputs = architecture.new()
    module.eval()
    exact = copy.deepcopy(module).double()
    doubled = {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}
    with in_float64(), torch.no_grad():
        loss, results = exact(**doubled)
    step = torchipu.InferenceStep(module, torchipu.Options(allow_out_of_memory=True))
    with quiet(), torch.no_grad():
        step.compile(**inputs)
    built = step._built
    assert built is not None
    machine = machine_of(step.compiled.executable, built, step.options, tuple(inputs.values()), 1, evaluate)
    machine.run()
    found = {stream: values[0] for (stream, _), values in machine.results.items()}
    output_of = dict(zip(built.graph.outputs, step.compiled.graph.outputs, strict=True))
    errors = [
        relative(seen(output_of[leaf], found, machine.executable), wide(value))
        for leaf, value in zip(built.capture.leaves, [loss, *results], strict=True) if isinstance(leaf, Tensor)
    ]
    return max(errors), machine.supersteps


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


def main(names: list[str]) -> int:
    """Run architectures one by one; 1 when any fails."""
    console, failed = Console(highlight=False), 0
    chosen = [architecture for architecture in ALL if not names or architecture.name in names]
    if any(architecture.package in missing_libraries() for architecture in chosen):
        print(f'{" and ".join(PACKAGES)} are needed: pip install -e ".[models]"', file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    for architecture in chosen:
        kinds = {"forward": error_of} | ({"training": error_of_training} if architecture.name in TRAINED else {})
        for kind, run in kinds.items():
            began = time.monotonic()
            try:
                error, supersteps = run(architecture)
            except Exception as raised:  # whatever a model or the machine raises is a finding
                failed += 1
                console.print(f"FAIL {architecture.name}, {kind}: {type(raised).__name__}: {raised}", markup=False)
                continue
            failed += error > LIMIT
            word = "ok  " if error <= LIMIT else "FAIL"
            console.print(
                f"{word} {architecture.name}, {kind}: {supersteps} compute sets, error {error:.1e}, "
                f"{time.monotonic() - began:.1f} s", markup=False,
            )
    console.print(f"{failed} failed" if failed else f"{len(chosen)} as eager")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
