"""What programs for several IPUs use of Horovod, over torch.distributed; ``import horovod.torch`` gives ours.

A Horovod that is installed comes first: see ``torchipu/alias.py``.
"""

from typing import Any

__version__ = "0.28.1"
"""The release of Horovod whose names these are: programs ask it."""


def __getattr__(name: str) -> Any:
    """Refuse what Horovod has besides.

    Raises:
        AttributeError: Always; of the launcher it says what to use instead.
    """
    instead = ", and not in torchipu's: start processes by poprun, torchrun, mpirun or srun" if name == "run" else ""
    raise AttributeError(f"module 'horovod' has no attribute {name!r}{instead}", name=name)
