"""What Lightning asks of an accelerator; an emulated IPU is always there."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.lightning.package import Package, lacking, missing_names
from torchipu.target import TARGETS

AUTO_DEVICES = 4


_Base: Any = object
"""In its place comes Accelerator of either package, when a class is made of the methods here."""


class IPUAcceleratorMethods(_Base):
    """What IPUAccelerator does beside Lightning's Accelerator."""

    package: Package

    def __init__(self) -> None:
        """Look whether this version of Lightning has the names that are needed, before a loop runs into them.

        Raises:
            ImportError: It lacks one.
        """
        super().__init__()
        missing = missing_names(self.package.name)
        if missing:
            raise lacking(missing)

    def setup_device(self, device: torch.device) -> None:
        """Do nothing: values lie on the host between calls."""

    def teardown(self) -> None:
        """Do nothing."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """Return nothing: cycles and memory are in the profile of a program."""
        return {}

    @classmethod
    def parse_devices(cls, devices: Any) -> int:
        """Return the number of IPUs.

        Args:
            devices: A number, as text if need be, a list of numbers, or -1 for all.

        Raises:
            MisconfigurationException: It is no power of two.
        """
        if isinstance(devices, str) and "," in devices:
            devices = [part for part in devices.split(",") if part.strip()]
        if isinstance(devices, (list, tuple)):
            devices = len(devices)
        text = str(devices).strip()
        if text in ("-1", "auto"):
            return cls.auto_device_count()
        if not text.isdigit() or int(text) < 1 or int(text) & (int(text) - 1):
            raise cls.package.misconfigured(
                f"`Trainer(accelerator='ipu', devices={devices!r})`: IPUs come in powers of two: 1, 2, 4, 8, ..."
            )
        return int(text)

    @staticmethod
    def get_parallel_devices(devices: int) -> list[torch.device]:
        """Return a device for each IPU; no tensor is ever on one of them."""
        return [torch.device("ipu", index) for index in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        """Return the IPUs of an M2000: four."""
        return AUTO_DEVICES

    @staticmethod
    def is_available() -> bool:
        """Whether there are IPUs: emulated ones are there always."""
        return bool(TARGETS)

    @staticmethod
    def name() -> str:
        """Return the name by which a Trainer finds it."""
        return "ipu"

    @classmethod
    def register_accelerators(cls, registry: Any) -> None:
        """Register it under its name."""
        if "ipu" not in registry:
            registry.register("ipu", cls, description="Emulated Graphcore IPUs (torchipu)")
