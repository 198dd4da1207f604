"""How a program reaches the compiler: through torch.compile, or as a step with its nodes in blocks on several IPUs."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping

import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func

import torchipu
from tests.fuzz.generate import Outcome, differentiate
from tests.fuzz.program import Program
from torchipu.backend import ipu_backend

Door = Callable[[Program], Outcome]


class _Module(torch.nn.Module):
    def __init__(self, function: Callable[..., list[torch.Tensor]]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        return self.function(*tensors)


class _Training(torch.nn.Module):
    """The program, its inputs that ask for gradients as weights; the loss is its outputs' sum with fixed factors.

    What it keeps are buffers, named by their places.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.function = program.function(blocks=True)
        tensors = program.tensors()
        self.places = [place for place, given in enumerate(program.inputs) if given.gradient]
        self.weights = torch.nn.ParameterList([tensors[place].detach() for place in self.places])  # which lie as given
        self.kept = [place for place, given in enumerate(program.inputs) if given.kept]
        for place in self.kept:
            self.register_buffer(f"kept_{place}", tensors[place])

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        weights = dict(zip(self.places, self.weights, strict=True))
        weights.update((place, getattr(self, f"kept_{place}")) for place in self.kept)
        values = self.function(*(
            weights[place] if place in weights else next(given) for place in range(len(self.program.inputs))
        ))
        terms = [(value.float() * (place + 1)).sum() for place, value in enumerate(values) if value.is_floating_point()]
        loss = torch.stack(terms).sum() if terms else torch.zeros(())
        return [*values, loss]


def through_backend(program: Program) -> Outcome:
    """Compile as Dynamo does once it has traced, which leaves out the time of its tracing."""
    tensors = program.tensors()
    return differentiate(ipu_backend(_Module(program.function()), list(tensors), options={"host_threads": 1}), tensors)


def through_dynamo(program: Program) -> Outcome:
    """Compile as a user would."""
    torch._dynamo.reset()
    compiled = torch.compile(program.function(), backend="ipu", fullgraph=True, dynamic=False)
    return differentiate(compiled, program.tensors())


def through_compiled_autograd(program: Program) -> Outcome:
    """Compile as a user would, and let torch trace the backward by itself, with what the forward has saved."""
    torch._dynamo.reset()
    compiled = torch.compile(program.function(), backend="ipu", fullgraph=True, dynamic=False)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="ipu", dynamic=False)):
        return differentiate(compiled, program.tensors())


def through_steps(program: Program) -> Outcome:
    """Run the program as an `InferenceStep` with its nodes in blocks on IPUs; a step leaves its inputs as they are."""
    tensors = [tensor.detach() for tensor in program.tensors()]
    options = torchipu.Options(allow_out_of_memory=True, execution=_execution(program))
    step = torchipu.InferenceStep(_Module(program.function(blocks=True)), options)
    with torch.no_grad():
        values = step(*tensors)
    return Outcome([value.detach() for value in values], [], [])


def through_training(program: Program) -> Outcome:
    """Train the program for one update, with its nodes in blocks on IPUs; the change of the weights is the gradient."""
    model = _Training(program)
    before = [weight.detach().clone() for weight in model.weights]
    options = torchipu.Options(allow_out_of_memory=True, execution="sharded")
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    step = torchipu.TrainStep(model, optimiser, options, loss=len(program.outputs))
    tensors = [t.detach() for place, t in enumerate(program.tensors())
               if place not in (*model.places, *model.kept)]
    values = step(*tensors)
    change = [first.float() - weight.detach().float() for first, weight in zip(before, model.weights, strict=True)]
    kept = [getattr(model, f"kept_{place}").detach() for place in model.kept]
    return Outcome([value.detach() for value in values], list(change), kept)


def through_torch(program: Program, *, dynamo: bool) -> Outcome:
    """Run the graphs that torch makes for any compiler by eager, with or without Dynamo: what is wrong is not ours."""
    if dynamo:
        torch._dynamo.reset()
        compiled = torch.compile(program.function(), backend="aot_eager", fullgraph=True, dynamic=False)
        return differentiate(compiled, program.tensors())

    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        return make_boxed_func(graph)

    return differentiate(aot_function(program.function(), fw_compiler=keep, bw_compiler=keep), program.tensors())


def on_tiles(program: Program) -> Outcome:
    """Run the program's forward vertex by vertex on the bytes of the tiles."""
    tensors = [tensor.detach() for tensor in program.tensors()]
    options = torchipu.Options(executor="tiles", allow_out_of_memory=True)
    with torch.no_grad():
        values = torchipu.InferenceStep(_Module(program.function()), options)(*tensors)
    return Outcome([value.detach() for value in values], [], [])


def _execution(program: Program) -> str:
    return "sharded" if zlib.crc32(program.source().encode()) % 3 == 0 else "pipelined"


DOORS: dict[str, tuple[Door, float]] = {
    "backend": (through_backend, 0.62), "dynamo": (through_dynamo, 0.05), "steps": (through_steps, 0.15),
    "training": (through_training, 0.15), "tiles": (on_tiles, 0.03), "autograd": (through_compiled_autograd, 0.0),
}
"""By name: the door, and its share of the seeds."""
OF_NETWORKS = {"backend": 0.35, "dynamo": 0.1, "autograd": 0.2, "steps": 0.05, "training": 0.3}
"""Shares of those of networks, which are trained."""


def door_of(seed: int, program: Program, shares: Mapping[str, float] | None = None) -> str:
    """Return the door of a seed; a program that has nothing to train, or no finite loss, is run as a step.

    Args:
        seed: The seed.
        program: Its program.
        shares: Of doors; None for those of `DOORS`.
    """
    shares = shares or {name: share for name, (_, share) in DOORS.items() if share}
    door = random.Random(f"door {seed}").choices(list(shares), list(shares.values()))[0]
    is_trained = any(given.gradient for given in program.inputs) and not program.is_special
    if door == "tiles" and any(given.is_special and given.dtype in ("int", "long") for given in program.inputs):
        return "steps"  # an IPU has no integers of 64 bits, nor sums of those at the ends of 32
    return "steps" if door == "training" and not is_trained else door
