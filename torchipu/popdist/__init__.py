"""PopDist's names: which instance this process is, as its launcher has told it; ``import popdist`` gives this module.

A program that no launcher started is the only instance, with one replica of one IPU. Numbers come from the variables
``POPDIST_NUM_TOTAL_REPLICAS``, ``POPDIST_NUM_LOCAL_REPLICAS``, ``POPDIST_NUM_IPUS_PER_REPLICA``,
``POPDIST_REPLICA_INDEX_OFFSET``, ``POPDIST_LOCAL_INSTANCE_INDEX`` and ``POPDIST_UNIFORM_REPLICAS_PER_INSTANCE``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

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
]

P = ParamSpec("P")
T = TypeVar("T")

PREFIX = "POPDIST_"
_is_initialised = False


def isPopdistEnvSet() -> bool:
    """Return whether a launcher started this process."""
    return f"{PREFIX}NUM_TOTAL_REPLICAS" in os.environ


def getNumTotalReplicas() -> int:
    """Return the number of replicas of all instances together."""
    return _number("NUM_TOTAL_REPLICAS", default=1, least=1)


def getNumLocalReplicas() -> int:
    """Return the number of replicas that this instance runs."""
    return _number("NUM_LOCAL_REPLICAS", default=1, least=1)


def getNumIpusPerReplica() -> int:
    """Return the number of IPUs of a replica."""
    return _number("NUM_IPUS_PER_REPLICA", default=1, least=1)


def getReplicaIndexOffset() -> int:
    """Return the number of this instance's first replica among all."""
    return _number("REPLICA_INDEX_OFFSET", default=0, least=0)


def getLocalInstanceIndex() -> int:
    """Return the number of this instance among those of its host."""
    return _number("LOCAL_INSTANCE_INDEX", default=0, least=0)


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
    """Return whether a replica of so many IPUs is what the launcher was told; without a launcher it always is.

    Args:
        num_ipus: IPUs of a replica.
    """
    return not isPopdistEnvSet() or num_ipus == getNumIpusPerReplica()


def execute_on_instances(
    instances: Collection[int], func: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T | None:
    """Call a function in some instances only, such as the one that writes a checkpoint.

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
    if unknown := sorted(number for number in instances if not 0 <= number < getNumInstances()):
        raise ValueError(f"there are no instances {unknown}: they are numbered from 0 to {getNumInstances() - 1}")
    return func(*args, **kwargs) if getInstanceIndex() in instances else None


# --------------------------------------------------------------------------- the layer below
def init() -> None:
    """Begin; nothing has to be connected for instances that exchange nothing on the host."""
    initializeBackend()


def initializeBackend() -> None:
    """Do what `init` does, under the name of the layer below."""
    global _is_initialised
    _is_initialised = True


def finalizeBackend() -> None:
    """Undo `init`."""
    global _is_initialised
    _is_initialised = False


def isBackendInitialized() -> bool:
    """Return whether `init` was called."""
    return _is_initialised


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
