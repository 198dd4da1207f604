"""The names of ``horovod.torch``: for values on the host, such as metrics; gradients of IPUs are summed by the program.

Without a launcher there is one process, and every exchange returns what it was given.
"""

from __future__ import annotations

from typing import Any

from torchipu.horovod.batch_norm import SyncBatchNorm
from torchipu.horovod.compression import Compression
from torchipu.horovod.exchange import allgather_object, broadcast_object
from torchipu.horovod.optimiser import DistributedOptimizer, broadcast_optimizer_state, broadcast_parameters
from torchipu.horovod.torch import mpi_ops
from torchipu.horovod.torch.mpi_ops import *  # noqa: F403

__all__ = [
    *mpi_ops.__all__,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]

_NO_TIMELINE = "torch.profiler shows what the host does, torchipu's report what the IPU does"
_INSTEAD = {
    "elastic": "processes neither come nor go while a program runs. Write checkpoints; start it again from the last",
    "start_timeline": _NO_TIMELINE,
    "stop_timeline": _NO_TIMELINE,
}
"""What to do instead of what Horovod has besides."""


def __getattr__(name: str) -> Any:
    """Refuse what Horovod has besides, so that ``hasattr`` says that it is not there.

    Raises:
        AttributeError: Always; of names that Horovod has it says what to do instead.
    """
    instead = f", and not in torchipu's horovod: {_INSTEAD[name]}." if name in _INSTEAD else ""
    raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}{instead}", name=name)
