"""The parts of an executor, which share its state."""

from __future__ import annotations

from torchipu.poptorch.executor.compilation import Compilation
from torchipu.poptorch.executor.device import Device
from torchipu.poptorch.executor.figures import Figures
from torchipu.poptorch.executor.files import Files
from torchipu.poptorch.executor.inputs import Inputs
from torchipu.poptorch.executor.optimiser import FollowedOptimiser
from torchipu.poptorch.executor.random_numbers import RandomNumbers
from torchipu.poptorch.executor.runs import Runs
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.executor.weights import Weights
from torchipu.poptorch.reports.perf import Counters


class Parts:
    """What an executor consists of.

    No part knows the executor, whose end leaves weights to the host: it must not be kept alive by what it holds. What
    a part has to tell others of it, it is given for a call.

    Args:
        state: What all of them share.
    """

    def __init__(self, state: State) -> None:
        inputs, counters = Inputs(state), Counters()
        self.state = state
        self.compilation = Compilation(state, inputs)
        self.random = RandomNumbers(state)
        self.weights = Weights(state)
        self.optimiser = FollowedOptimiser(state)
        self.device = Device(state, self.weights, self.random)
        self.runs = Runs(state, inputs, counters)
        self.files = Files(state, self.compilation, self.random)
        self.figures = Figures(state, counters)
