"""PopTorch's options of each stage, from those of the user and of the Trainer."""

from __future__ import annotations

import os
from typing import Any

from torchipu.poptorch.enums import OutputMode
from torchipu.poptorch.options import Options

SEED_VARIABLE = "PL_GLOBAL_SEED"


def made_options(device_iterations: int, replicas: int, accumulation: int) -> Options:
    """Return options for a user who gives none.

    Args:
        device_iterations: Weight updates, or micro-batches of inference, in a call.
        replicas: Copies of the model.
        accumulation: Micro-batches in a weight update.
    """
    options = Options()
    options.deviceIterations(device_iterations)
    options.replicationFactor(replicas)
    options.Training.gradientAccumulation(accumulation)
    if os.environ.get(SEED_VARIABLE):
        # Not by randomSeed, which would seed the host anew: its order of samples is that of seed_everything.
        options.createOrSet(random_seed=int(os.environ[SEED_VARIABLE]))
    return options


def ready(options: Options, *, is_training: bool) -> Options:
    """Return a copy of options that a stage keeps, with the output mode that PopTorch would choose."""
    twin = options.clone()
    if twin.defaultOutputMode():
        twin.outputMode(OutputMode.Final if is_training else OutputMode.All)
    return twin


def check(options: Any, name: str, error: type[Exception]) -> None:
    """Refuse what is no PopTorch options.

    Raises:
        MisconfigurationException: It is something else.
    """
    if options is not None and not isinstance(options, Options):
        raise error(f"IPUStrategy({name}=...) takes poptorch.Options, got {type(options).__name__}")
