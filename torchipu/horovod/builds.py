"""What exchanges run over, as programs ask it of Horovod: gloo, through torch.distributed, and nothing else."""

from __future__ import annotations

from torch.distributed import is_gloo_available


def gloo_built() -> bool:
    """Return whether torch has gloo."""
    return is_gloo_available()


def gloo_enabled() -> bool:
    """Return whether gloo is used, as it is wherever torch has it."""
    return is_gloo_available()


def mpi_built() -> bool:
    """Return False: processes that mpirun starts exchange over gloo too."""
    return False


def mpi_enabled() -> bool:
    """Return False, as `mpi_built` does."""
    return False


def mpi_threads_supported() -> bool:
    """Return whether mpi4py may be used beside it from several threads: not known, so False."""
    return False


def nccl_built() -> int:
    """Return NCCL's version, which is 0: there is none."""
    return 0


def cuda_built() -> bool:
    """Return False."""
    return False


def rocm_built() -> bool:
    """Return False."""
    return False


def ccl_built() -> bool:
    """Return False."""
    return False


def ddl_built() -> bool:
    """Return False."""
    return False
