"""PopTorch's errors for those of the core."""

from __future__ import annotations

from torchipu.errors import ExecutionError, IpuError, OptionsError
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch.poptorch_core import Error


def as_poptorch_error(error: IpuError) -> Error:
    """Return PopTorch's error for one of the core.

    Args:
        error: What the compiler or the program raised.
    """
    if isinstance(error, OptionsError) and error.option == "broadcast_buffers":
        return createPoptorchError(
            f"PopTorch does not support broadcasting buffers: {error.message}. If your model is able to tolerate "
            "buffers becoming out of sync between replicas, you can disable buffer broadcasting using "
            "poptorch.Options.broadcastBuffers(False)."
        )
    kind = "poplar_application_runtime_error" if isinstance(error, ExecutionError) else "poptorch_cpp_error"
    return Error(f"'{kind}': {error}", type=kind, message=str(error))
