"""Which of how many processes this one is, as the program that started it says in the environment.

Knows the variables of torchrun and poprun, of Open MPI, of launchers that speak PMI (MPICH, Intel MPI) and of Slurm's
srun. Needs no torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchipu.errors import RendezvousError


@dataclass(frozen=True, slots=True)
class Launched:
    """The place of this process among those that were started together.

    Attributes:
        launcher: What kind of program started it.
        rank: Number of this process, from 0.
        size: Number of processes.
        local_rank: Number of this process among those of its host.
        local_size: Processes of this host; None if the launcher does not say.
        job: Text that processes of one job share and other jobs do not have; None if the launcher gives none.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    job: str | None


@dataclass(frozen=True, slots=True)
class _Names:
    """The variables of one kind of launcher; those of ``needs`` tell that it was this one."""

    launcher: str
    rank: str
    size: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    job: tuple[str, ...]
    needs: tuple[str, ...]


LAUNCHERS = (
    _Names("torchrun", "RANK", "WORLD_SIZE", ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",), ("TORCHELASTIC_RUN_ID",),
           ("RANK", "WORLD_SIZE", "LOCAL_RANK")),
    _Names("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",),
           ("OMPI_COMM_WORLD_LOCAL_SIZE",), ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
           ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")),
    _Names("PMI", "PMI_RANK", "PMI_SIZE", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
           ("PMI_ID", "HYDI_CONTROL_FD"), ("PMI_RANK", "PMI_SIZE")),
    # A batch script has SLURM_PROCID too, without being one of several: the step tells.
    _Names("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), (), ("SLURM_JOB_ID",),
           ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID")),
)


def launched(environment: Mapping[str, str] | None = None) -> Launched | None:
    """Return the place of this process among those of its launcher; None if no launcher started it.

    Args:
        environment: Variables; None for those of this process.

    Raises:
        RendezvousError: A variable holds no number, or one that is out of range.
    """
    variables = os.environ if environment is None else environment
    names = next((names for names in LAUNCHERS if all(variables.get(name) for name in names.needs)), None)
    if names is None:
        return None
    size = _number(variables, names.size, least=1)
    rank = _number(variables, names.rank, least=0)
    if rank >= size:
        raise RendezvousError(
            f"{names.rank}={rank} is no process of {names.size}={size}: they are numbered from 0 to {size - 1}"
        )
    local_rank = next((name for name in names.local_rank if variables.get(name)), None)
    local_size = next((name for name in names.local_size if variables.get(name)), None)
    return Launched(
        names.launcher, rank, size,
        0 if local_rank is None else _number(variables, local_rank, least=0),
        None if local_size is None else _number(variables, local_size, least=1),
        next((variables[name] for name in names.job if variables.get(name)), None),
    )


def _number(variables: Mapping[str, str], name: str, *, least: int) -> int:
    text = variables[name]
    if not text.isdecimal() or int(text) < least:
        raise RendezvousError(f"the variable {name} must be a whole number from {least}, got {text!r}")
    return int(text)
