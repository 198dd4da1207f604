"""The process group that an executor trains in, and what its processes must have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torchipu.poptorch.data.sharing import SHARERS
from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError

SEED_BYTES = 6
"""Bytes of a seed drawn by chance: it stays an exact number wherever it is shown or stored."""

ALONE = "alone"


def group_and_seed(options: Options, *, is_training: bool) -> tuple[Any, int]:
    """Return what the core takes for a process group, and a seed.

    Args:
        options: The executor's.
        is_training: Whether gradients are to be summed over processes.

    Returns:
        The group of all processes, formed if it is not there; ``alone`` for one process, for inference, and for a
        program that is only compiled. A seed, that of the options or else one drawn by chance for all processes.

    Raises:
        RendezvousError: The processes do not come together.
        Error: They shuffle with different seeds, share out data of different lengths, or each was given the replicas
            of all.
    """
    distributed = options.Distributed
    drawn = int.from_bytes(os.urandom(SEED_BYTES), "little")
    own = int(options.random_seed) if options.exists("random_seed") else None
    if not is_training or distributed.numProcesses == 1 or options.connection_type == ConnectionType.Never:
        return ALONE, drawn if own is None else own
    _check_replicas(options)
    from torchipu.distributed.group import form  # torch.distributed is not needed by one process

    file = distributed.file_store if distributed.exists("file_store") else None
    group = form(distributed.processId, distributed.numProcesses, store=file)
    # All that processes tell each other goes in one exchange, which every one of them makes whatever it has to tell.
    loaders = [loader for loader in SHARERS if loader.options.Distributed.numProcesses == distributed.numProcesses]
    told = _gathered(group, {
        "seeds": sorted(int(loader.options.random_seed) for loader in loaders if SHARERS[loader]),
        "lengths": sorted(len(loader.dataset) for loader in loaders), "drawn": drawn,
    })
    _check_seeds(told)
    _check_lengths(told)
    return group, int(told[0]["drawn"]) if own is None else own


def _check_replicas(options: Options) -> None:
    """Refuse the number of all replicas where that of one process is asked for."""
    total, local = (os.environ.get(f"POPDIST_NUM_{name}_REPLICAS", "") for name in ("TOTAL", "LOCAL"))
    if total != local and local.isdecimal() and str(options.replication_factor) == total:
        raise createPoptorchError(
            f"poptorch.Options.replicationFactor counts replicas per process: the launcher has {total} in all and "
            f"gave this process {local}. Set replicationFactor({local}), or use popdist.poptorch.Options, which does"
        )


def _check_seeds(told: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, in every process, to train on data that the processes shuffle differently."""
    said = _differing(told, "seeds")
    if said:
        raise createPoptorchError(
            f"To shuffle, all processes must use the same seed: poptorch.Options.randomSeed is {said}. "
            "With others they do not see each element once"
        )


def _check_lengths(told: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, in every process, to share out data of which the processes have different numbers of elements."""
    said = _differing(told, "lengths")
    # One process may have a loader more, of data that it alone looks at.
    if said and len({len(one["lengths"]) for one in told}) == 1:
        raise createPoptorchError(
            f"To share out a dataset, all processes must have all of it: its length is {said}. Give each the same "
            "dataset, or set auto_distributed_partitioning=False where each has its own share"
        )


def _differing(told: Sequence[Mapping[str, Any]], what: str) -> str:
    """Return what each process has that has anything, if they differ, in words."""
    found = {rank: one[what] for rank, one in enumerate(told) if one[what]}
    if len({tuple(values) for values in found.values()}) < 2:
        return ""
    return ", ".join(f"{' and '.join(map(str, values))} in process {rank}" for rank, values in found.items())


def _gathered(group: Any, value: object) -> list[Any]:
    """Return a value of each process, in all of them.

    Raises:
        PeerError: Another process has gone, or does not answer.
    """
    import torch.distributed as dist

    from torchipu.distributed.members import Members, explained

    found: list[Any] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(found, value, group=group)
    except RuntimeError as error:
        raise explained(error, Members(group)) from error
    return found
