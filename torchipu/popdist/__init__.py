"""PopDist's names: which instance this process is, as its launcher has told it; ``import popdist`` gives this module.

``poprun`` tells it by the variables ``POPDIST_NUM_TOTAL_REPLICAS``, ``POPDIST_NUM_LOCAL_REPLICAS``,
``POPDIST_NUM_IPUS_PER_REPLICA``, ``POPDIST_REPLICA_INDEX_OFFSET``, ``POPDIST_LOCAL_INSTANCE_INDEX`` and
``POPDIST_UNIFORM_REPLICAS_PER_INSTANCE``. Under torchrun, mpirun or srun the number of this process and of all are
theirs, with one replica in each unless ``POPDIST_NUM_LOCAL_REPLICAS`` says otherwise. A program that no launcher
started is the only instance, with one replica of one IPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from torchipu.distributed.launcher import launched

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "checkNumIpusPerReplica",
    "execute_on_instances",
    "finalizeBackend",
    "getDeviceId",
    "getInstanceIndex",
    "getLocalInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "initializeBackend",
    "isBackendInitialized",
    "isPopdistEnvSet",
    "registerCommunicator",
    "registerDefaultBackend",
]

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "POPDIST_"
_is_initialised = False
_communicators: dict[int, tuple[int, ...]] = {}


def isPopdistEnvSet() -> bool:
    """Return whether a launcher started this process."""
    return f"{PREFIX}NUM_TOTAL_REPLICAS" in os.environ or launched() is not None


def getNumTotalReplicas() -> int:
    """Return the number of replicas of all instances together."""
    place = launched()
    return _number("NUM_TOTAL_REPLICAS", default=getNumLocalReplicas() * (place.size if place else 1), least=1)


def getNumLocalReplicas() -> int:
    """Return the number of replicas that this instance runs."""
    return _number("NUM_LOCAL_REPLICAS", default=1, least=1)


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs of a replica."""
    return _number("NUM_IPUS_PER_REPLICA", default=1, least=1)


def getReplicaIndexOffset() -> int:
    """Return the number of this instance's first replica among all."""
    place = launched()
    return _number("REPLICA_INDEX_OFFSET", default=getNumLocalReplicas() * (place.rank if place else 0), least=0)


def getLocalInstanceIndex() -> int:
    """Return the number of this instance among those of its host."""
    place = launched()
    return _number("LOCAL_INSTANCE_INDEX", default=place.local_rank if place else 0, least=0)


def getInstanceIndex() -> int:
    """Return the number of this instance, from 0.

    Raises:
        RuntimeError: Instances have different numbers of replicas.
    """
    _check_uniform()
    return getReplicaIndexOffset() // getNumLocalReplicas()


def getNumInstances() -> int:
    """Return the number of instances.

    Raises:
        RuntimeError: Instances have different numbers of replicas.
    """
    _check_uniform()
    return getNumTotalReplicas() // getNumLocalReplicas()


def getDeviceId(ipus_per_replica: int = 0) -> int:
    """Return the number of the device to use: on an emulated machine that of the instance on its host.

    Args:
        ipus_per_replica: IPUs that a replica needs; 0 takes what the launcher said.

    Raises:
        RuntimeError: The launcher made room for fewer.
    """
    if ipus_per_replica and not checkNumIpusPerReplica(ipus_per_replica):
        raise RuntimeError(
            f"a replica needs {ipus_per_replica} IPUs, and the launcher was told {getNumIpusPerReplica()}: "
            f"give it --ipus-per-replica {ipus_per_replica}"
        )
    return getLocalInstanceIndex()


def checkNumIpusPerReplica(num_ipus: int) -> bool:
    """Return whether a replica of so many IPUs is what the launcher was told; one that was told nothing takes any.

    Args:
        num_ipus: IPUs of a replica.
    """
    return f"{PREFIX}NUM_IPUS_PER_REPLICA" not in os.environ or num_ipus == getNumIpusPerReplica()


def execute_on_instances(
    instances: Collection[int], func: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Call a function in some instances only, such as the one that writes a checkpoint.

    The others go on at once and do not wait, so the function may not exchange anything with them. What it raises is
    raised here, with a note of the instance; the launcher then ends the others.

    Args:
        instances: Their numbers.
        func: What to call.
        *args: Its arguments.
        **kwargs: Its keyword arguments.

    Returns:
        What it returned, and None in the other instances.

    Raises:
        ValueError: A number is not that of an instance.
    """
    num_instances = getNumInstances()
    if unknown := sorted(number for number in instances if not 0 <= number < num_instances):
        raise ValueError(f"there are no instances {unknown}: they are numbered from 0 to {num_instances - 1}")
    if getInstanceIndex() not in instances:
        return None
    try:
        return func(*args, **kwargs)
    except Exception as error:
        if num_instances > 1:
            error.add_note(f"raised in instance {getInstanceIndex()} of {num_instances}, by execute_on_instances")
        raise


# --------------------------------------------------------------------------- the layer below
def init() -> None:
    """Let the instances find each other: form torch.distributed's default group, unless it is there.

    Called once, in every instance, before anything is exchanged. A single instance has nobody to find.

    Raises:
        RendezvousError: They do not come together.
    """
    initializeBackend()


def initializeBackend() -> None:
    """Do what `init` does, under the name of the layer below."""
    global _is_initialised
    if getNumInstances() > 1 and not _is_initialised:
        from torchipu.distributed.group import form  # a single instance needs no torch for this

        form(getInstanceIndex(), getNumInstances())
    _is_initialised = True


def finalizeBackend() -> None:
    """Undo `init`; a group that the program itself has made stays."""
    global _is_initialised
    if getNumInstances() > 1 and _is_initialised:
        from torchipu.distributed.group import end

        end()
    _communicators.clear()
    _is_initialised = False


def isBackendInitialized() -> bool:
    """Return whether `init` was called."""
    return _is_initialised


def registerDefaultBackend() -> None:
    """Choose what instances exchange values over: gloo, the only choice; `init` does it too."""
    initializeBackend()


def registerCommunicator(participants: Collection[int], id: int) -> ProcessGroup | None:
    """Make a group of some instances; all instances call this alike, also those that are not among them.

    Args:
        participants: Their numbers.
        id: A number for the group; each is used once.

    Returns:
        torch.distributed's group; None in an instance that is not among them, and where there is only one instance.

    Raises:
        RuntimeError: `init` has not been called.
        ValueError: A number is not that of an instance, or the group's is taken.
    """
    if not _is_initialised:
        raise RuntimeError("registerCommunicator needs the other instances: call popdist.init() first")
    num_instances = getNumInstances()
    if unknown := sorted(number for number in participants if not 0 <= number < num_instances):
        raise ValueError(f"there are no instances {unknown}: they are numbered from 0 to {num_instances - 1}")
    if id in _communicators:
        raise ValueError(f"there is a communicator {id} already, of instances {list(_communicators[id])}")
    _communicators[id] = tuple(sorted(participants))
    if num_instances == 1:
        return None
    import torch.distributed as dist

    from torchipu.distributed.timeouts import COLLECTIVE_TIMEOUT, seconds_of

    seconds = timedelta(seconds=seconds_of(COLLECTIVE_TIMEOUT))
    group = dist.new_group(list(_communicators[id]), timeout=seconds)
    return group if getInstanceIndex() in participants else None


def _number(name: str, *, default: int, least: int) -> int:
    text = os.environ.get(f"{PREFIX}{name}", str(default))
    if not text.isdecimal() or int(text) < least:
        raise RuntimeError(f"{PREFIX}{name} must be a whole number from {least}, got {text!r}")
    return int(text)


def _check_uniform() -> None:
    name = f"{PREFIX}UNIFORM_REPLICAS_PER_INSTANCE"
    if os.environ.get(name, "1").lower() in ("0", "false", "no") or getNumTotalReplicas() % getNumLocalReplicas():
        raise RuntimeError(
            f"instances have no common number of replicas: {getNumTotalReplicas()} in all, {getNumLocalReplicas()} here"
        )
