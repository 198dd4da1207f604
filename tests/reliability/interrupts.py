"""Ctrl-C at random moments of a compilation, a capture and a step: how soon it ends, and what it leaves.

``python -m tests.reliability interrupts --size 50`` presses it so often for each kind. A process of its own sends the
signal and says when, so that nothing of what is interrupted can delay it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import random
import signal
import struct
import time
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchipu
from tests.catalogue.unharmed import same

WHILE_RUNNING, WHILE_COMPILING = 0.5, 1.0
"""Seconds, within which a call must have ended."""


PRESS = struct.Struct("qd")
"""The number of a press, and seconds."""


class Finger:
    """A process that presses Ctrl-C once, some seconds after it is told to."""

    def __init__(self) -> None:
        reading, self._orders = os.pipe()
        self._times, writing = os.pipe()
        target = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            os.close(self._orders)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            while order := os.read(reading, PRESS.size):
                number, seconds = PRESS.unpack(order)
                time.sleep(seconds)
                when = time.monotonic()
                os.kill(target, signal.SIGINT)
                os.write(writing, PRESS.pack(number, when))
            os._exit(0)
        os.close(reading)
        os.close(writing)
        self._number = 0

    def press(self, seconds: float) -> None:
        """Press after that many seconds."""
        self._number += 1
        os.write(self._orders, PRESS.pack(self._number, seconds))

    def pressed(self) -> float:
        """Wait until it has pressed, and return when, by `time.monotonic`: the signal has been sent by then."""
        while True:
            number, when = PRESS.unpack(os.read(self._times, PRESS.size))
            if number == self._number:  # and not an earlier one, which nobody asked for
                return float(when)

    def close(self) -> None:
        """End the process."""
        os.close(self._orders)
        os.close(self._times)
        os.waitpid(self._process, 0)


STACK: list[traceback.FrameSummary] = []
"""Where the last Ctrl-C was felt, innermost last."""


def _feel(number: int, frame: types.FrameType | None) -> None:
    STACK[:] = traceback.extract_stack(frame)
    raise KeyboardInterrupt


@contextlib.contextmanager
def pressing() -> Iterator[Finger]:
    """Yield a finger, with Ctrl-C as Python has it: a shell makes what it starts in the background ignore it."""
    finger, before = Finger(), signal.signal(signal.SIGINT, _feel)
    try:
        yield finger
    finally:
        finger.close()
        signal.signal(signal.SIGINT, before)


@dataclass
class Scene:
    """What is interrupted.

    Attributes:
        model: Its weights must stay as they are.
        optimiser: And its state; None where there is none.
        work: Interrupted.
        after: The call that must work afterwards; returns what it gives, weights included.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer | None
    work: Callable[[], object]
    after: Callable[[], object]

    def state(self) -> Any:
        """Return what must not change."""
        optimiser = self.optimiser.state_dict() if self.optimiser is not None else None
        gradients = [parameter.grad for parameter in self.model.parameters()]
        return copy.deepcopy((dict(self.model.state_dict()), optimiser, gradients))


class Network(nn.Module):
    """Layers of several kinds, with the loss of `[N, 16]` and labels `[N]`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 24), nn.LayerNorm(24), nn.GELU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5),
        )

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss."""
        return nn.functional.cross_entropy(self.layers(x), labels)


def _drawn(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return torch.randn(samples, 16, generator=drawn), torch.randint(5, (samples,), generator=drawn)


def _network() -> Network:
    torch.manual_seed(0)
    return Network()


def through_torch_compile() -> Scene:
    """Interrupt the first call, in which all is captured and compiled, and its backward."""
    torch._dynamo.reset()
    model, (x, labels) = _network(), _drawn(8)
    compiled = torch.compile(model, backend="ipu", fullgraph=True)

    def gradients() -> object:
        return torch.autograd.grad(compiled(x, labels), list(model.parameters()))

    return Scene(model, None, gradients, gradients)


def _training(options: torchipu.Options) -> tuple[Network, torch.optim.Optimizer, torchipu.TrainStep]:
    model = _network()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimiser, torchipu.TrainStep(model, optimiser, options)


def capture_of_a_step() -> Scene:
    """Interrupt the compilation of a step; it begins with the capture."""
    model, optimiser, step = _training(torchipu.Options())
    batch = _drawn(8)
    return Scene(model, optimiser, lambda: step.compile(*batch), lambda: (step(*batch), dict(model.state_dict())))


ITERATIONS = 20_000


def a_step() -> Scene:
    """Interrupt a call of many weight updates."""
    model, optimiser, step = _training(torchipu.Options(device_iterations=ITERATIONS))
    batch = _drawn(2 * ITERATIONS)
    step.compile(*batch)
    step(*batch)
    return Scene(model, optimiser, lambda: step(*batch), lambda: (step(*batch), dict(model.state_dict())))


SCENES: dict[str, tuple[Callable[[], Scene], float]] = {
    "compile": (through_torch_compile, WHILE_COMPILING), "capture": (capture_of_a_step, WHILE_COMPILING),
    "step": (a_step, WHILE_RUNNING),
}
"""By name: what makes a scene, and within how many seconds it must end."""


def _interrupt(scene: Scene, finger: Finger, seconds: float) -> float | None:
    """Interrupt a scene; return how many seconds it went on: None where it had ended, infinity where it did not heed.

    Python itself drops what is raised in a callback of a weak reference or in ``__del__``, and torch where its C code
    asks Python something and forgets the error; whoever is there then presses again.
    """
    ended = None
    finger.press(seconds)
    try:
        scene.work()
        ended = time.monotonic()
        pressed = finger.pressed()
        time.sleep(1.0)  # a signal that was sent arrives
    except KeyboardInterrupt:
        now = time.monotonic()
        return None if ended is not None else now - finger.pressed()
    return math.inf if pressed < ended else None


def _is_ours(stack: list[traceback.FrameSummary]) -> bool:
    """Whether code of ours was at work when an interrupt was felt, and not what torch or Python had called since."""
    return Path(torchipu.__file__).parent in Path(stack[-1].filename).parents


def run_kind(kind: str, size: int, finger: Finger, chance: random.Random) -> dict[str, float]:
    """Interrupt one kind of work so often, and return what came of it."""
    make, allowed = SCENES[kind]
    make().work()  # what the first of a process takes
    scene = make()
    begun = time.monotonic()
    scene.work()
    lasts = time.monotonic() - begun
    expected = make().after()
    times, dropped, changed, unusable = list[float](), list[str](), 0, 0
    while len(times) < size:
        scene = make()
        before = scene.state()
        seconds = _interrupt(scene, finger, chance.uniform(0, lasts))
        if seconds is None:
            continue
        if seconds == math.inf and not _is_ours(STACK):
            dropped.append(str(STACK[-1]))
            continue
        times.append(seconds)
        changed += not same(before, scene.state())
        try:
            unusable += not same(expected, scene.after())
        except Exception as error:
            print(f"interrupted {kind} does not go on: {type(error).__name__}: {error}", flush=True)
            unusable += 1
    for where in dropped:
        print(f"dropped by torch or Python: {where}", flush=True)
    return {
        kind: size, f"{kind} slowest, s": round(max(times), 3), f"{kind} too slow": sum(t > allowed for t in times),
        f"{kind} state changed": changed, f"{kind} not usable after": unusable,
        f"{kind} dropped by torch": len(dropped),
    }


def run(size: int) -> dict[str, float]:
    """Press Ctrl-C so often in each kind of work.

    Returns:
        For each kind: how often, the slowest end, ends that were too slow, states that changed, and models that did not
        go on as if nothing had been.
    """
    found = dict[str, float]()
    with pressing() as finger:
        for kind in SCENES:
            found |= run_kind(kind, size, finger, random.Random(kind))
    return found
