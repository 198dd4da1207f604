"""``Options.Distributed``: which of how many processes this one is."""

from __future__ import annotations

import os
from typing import Self

from torchipu.distributed.launcher import launched
from torchipu.poptorch.options.values import OptionsDict
from torchipu.poptorch.poptorch_core import createPoptorchError


class _DistributedOptions(OptionsDict):
    """Which of how many processes this one is.

    Starts from what a launcher says: ``mpirun``, as in PopTorch, or ``poprun``, ``torchrun`` or ``srun``.
    """

    def __init__(self) -> None:
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
        if "OMPI_COMM_WORLD_SIZE" not in os.environ and (place := launched()) is not None:
            self.configureProcessId(place.rank, place.size)

    def disable(self) -> Self:
        """Make this process the only one."""
        return self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Read the number of processes and the number of this one from the environment.

        Args:
            var_num_processes: Variable with the number of processes; one if it is not set.
            var_process_id: Variable with the number of this one; zero if it is not set.
        """
        return self.configureProcessId(_number(var_process_id, default=0), _number(var_num_processes, default=1))

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Set the number of processes and the number of this one.

        Args:
            process_id: Number of this process, from 0.
            num_processes: Number of processes.

        Raises:
            Error: There is no such process.
        """
        if isinstance(process_id, int) and isinstance(num_processes, int) and not 0 <= process_id < num_processes:
            raise createPoptorchError(
                f"Process {process_id} of {num_processes} cannot be: configureProcessId takes the number of this "
                "process, from 0, and then how many there are"
            )
        return self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    def setFileStore(self, path: str | os.PathLike[str]) -> Self:
        """Let the processes of a training find each other through a file instead of ``MASTER_ADDR``.

        It is none of PopTorch's options.

        Args:
            path: A file that all processes see, in a folder that is there; process 0 makes and removes it.
        """
        return self.createOrSet(file_store=os.path.abspath(path))

    @property
    def processId(self) -> int:
        """Number of this process, from 0."""
        return int(self.distributed_process_id)

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return int(self.num_distributed_processes)


def _number(variable: str, *, default: int) -> int:
    """Return the number that a variable of the environment holds, or the default where it is not set."""
    text = os.environ.get(variable, str(default))
    try:
        return int(text)
    except ValueError:
        raise createPoptorchError(f"The variable {variable} must hold a whole number, got {text!r}") from None
