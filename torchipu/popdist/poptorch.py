"""``popdist.poptorch.Options``: options of a model whose replicas a launcher has shared out among instances."""

from __future__ import annotations

from typing import NoReturn, Self

from torchipu import popdist
from torchipu.poptorch import options
from torchipu.poptorch.options.distributed import _DistributedOptions
from torchipu.poptorch.options.values import OptionsDict

__all__ = ["Options"]


def _refuse(name: str) -> NoReturn:
    raise RuntimeError(
        f"Cannot call `{name}` with popdist.poptorch.Options: the launcher decides, so change its command line, or use "
        "poptorch.Options"
    )


class _ManagedDistributedOptions(_DistributedOptions):
    """The number of instances and of this one, which the launcher decides."""

    def __init__(self) -> None:
        OptionsDict.__init__(
            self, num_distributed_processes=popdist.getNumInstances(),
            distributed_process_id=popdist.getInstanceIndex(), ipuof_configs={},
        )

    def disable(self) -> Self:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        _refuse("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> Self:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> Self:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        _refuse("Distributed.configureProcessId")


class Options(options.Options):
    """`poptorch.Options` with the replicas, the instance and the device that the launcher has chosen.

    Without a launcher they are one replica in one instance. What the launcher decides cannot be changed.

    Args:
        ipus_per_replica: IPUs that a replica needs; None takes what the launcher said.

    Raises:
        RuntimeError: The launcher made room for another number of IPUs.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        self._distributed = _ManagedDistributedOptions()
        self.set(replication_factor=popdist.getNumLocalReplicas())
        self.createOrSet(ipu_id=popdist.getDeviceId(ipus_per_replica or 0))

    def replicationFactor(self, replication_factor: int) -> Self:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        _refuse("replicationFactor")

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Compile for a machine that is not there, without the device that the launcher has chosen.

        Args:
            ipu_version: 1, 2 or 21.
        """
        super().useOfflineIpuTarget(ipu_version)
        self.deleteIfExists("ipu_id")
        return self

    def useIpuId(self, ipu_id: int) -> Self:
        """Refuse.

        Raises:
            RuntimeError: Always.
        """
        _refuse("useIpuId")
