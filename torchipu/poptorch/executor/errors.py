"""PopTorch's errors for those of the core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchipu.errors import ExecutionError, IpuError, OptionsError
from torchipu.poptorch.poptorch_core import Error, createPoptorchError
from torchipu.poptorch.tracing.tracer_words import in_plain_words

NAMES = {
    "automatic_loss_scaling=True": "Options.Training.setAutomaticLossScaling(True)",
    "loss_scale_tensors names": "automaticLossScalingSettings.toTrackTensors names",
    "option 'loss_scaling' expects": "the optimiser's loss_scaling must be",
}
"""What errors of the core speak of, and what PopTorch calls it."""


@contextmanager
def in_poptorch_words() -> Iterator[None]:
    """Raise what the core refuses as PopTorch's error.

    Raises:
        Error: The core has refused something.
    """
    try:
        yield
    except IpuError as error:
        raise as_poptorch_error(error) from error


def as_poptorch_error(error: IpuError) -> Error:
    """Return PopTorch's error for one of the core.

    Args:
        error: What the compiler or the program raised.
    """
    if isinstance(error, OptionsError) and error.option == "broadcast_buffers":
        return createPoptorchError(
            "PopTorch does not support broadcasting buffers. If your model is able to tolerate buffers becoming out of "
            "sync between replicas, you can disable buffer broadcasting using poptorch.Options.broadcastBuffers(False)."
            f" Here {error.message}."
        )
    kind = "poplar_application_runtime_error" if isinstance(error, ExecutionError) else "poptorch_cpp_error"
    text = in_plain_words(str(error))
    for ours, theirs in NAMES.items():
        text = text.replace(ours, theirs)
    return Error(f"'{kind}': {text}", type=kind, message=text)
