"""``popdist.poptorch.Options``: options of a model whose replicas a launcher has shared out among instances."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self

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


class _Managed(OptionsDict):
    """Options some of which the launcher decides: neither their methods nor their names change those."""

    _managed: ClassVar[frozenset[str]]

    def set(self, **values: Any) -> Self:
        """Change options that the launcher does not decide.

        Raises:
            RuntimeError: It decides one of them, and has chosen another value.
        """
        self._check_managed(values)
        return super().set(**values)

    def createOrSet(self, **values: Any) -> Self:
        """Change or add options that the launcher does not decide.

        Raises:
            RuntimeError: It decides one of them, and has chosen another value.
        """
        self._check_managed(values)
        return super().createOrSet(**values)

    def _check_managed(self, values: dict[str, Any]) -> None:
        for name in sorted(self._managed & values.keys()):
            if not self.exists(name) or self(name) != values[name]:
                chosen = f"{self(name)}" if self.exists(name) else "none"
                raise RuntimeError(
                    f"Cannot set `{name}` to {values[name]} with popdist.poptorch.Options: the launcher has chosen "
                    f"{chosen}, so change its command line, or use poptorch.Options"
                )


class _ManagedDistributedOptions(_Managed, _DistributedOptions):
    """The number of instances and of this one, which the launcher decides."""

    _managed = frozenset({"num_distributed_processes", "distributed_process_id"})

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


class Options(_Managed, options.Options):
    """`poptorch.Options` with the replicas, the instance and the device that the launcher has chosen.

    Without a launcher they are one replica in one instance. What the launcher decides cannot be changed.

    Args:
        ipus_per_replica: IPUs that a replica needs; None takes what the launcher said.

    Raises:
        RuntimeError: The launcher made room for another number of IPUs.
    """

    _managed = frozenset({"replication_factor", "ipu_id"})

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        self._distributed = _ManagedDistributedOptions()
        super(_Managed, self).set(replication_factor=popdist.getNumLocalReplicas())
        super(_Managed, self).createOrSet(ipu_id=popdist.getDeviceId(ipus_per_replica or 0))

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
