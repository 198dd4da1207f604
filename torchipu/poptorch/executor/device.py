"""Attaching a program to the device, and detaching it."""

from __future__ import annotations

from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.executor.random_numbers import RandomNumbers
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.executor.weights import Weights
from torchipu.poptorch.poptorch_core import createPoptorchError


class Device:
    """Whether the program of an executor is on the device.

    Args:
        state: The executor's.
        weights: Go to the device with the program.
        random: What is read before the program goes.
    """

    def __init__(self, state: State, weights: Weights, random: RandomNumbers) -> None:
        self._state, self._weights, self._random = state, weights, random

    @property
    def is_attached(self) -> bool:
        """Whether there is a program, and on the device."""
        return self._state.executable is not None and self._state.is_attached

    @property
    def is_offline(self) -> bool:
        """Whether the options allow no device."""
        return bool(self._state.options.connection_type == ConnectionType.Never)

    def check_free(self) -> None:
        """Refuse to attach what cannot be attached.

        Raises:
            Error: There is no program, or it is attached.
            AssertionError: The options allow no device.
        """
        self._state.check_compiled()
        if self.is_offline:
            raise AssertionError("Trying to attach to an offline device (ConnectionType.Never)")
        if self._state.is_attached:
            raise createPoptorchError("Device is already attached")

    def check_attached(self) -> None:
        """Refuse to detach what is not attached.

        Raises:
            Error: There is no program, or it is not attached.
        """
        self._state.check_compiled()
        if not self._state.is_attached:
            raise createPoptorchError("Device is not attached")

    def attach(self) -> None:
        """Put the program and the host's weights on the device."""
        self._state.session.must_upload = True
        self._state.is_attached = True
        self._state.is_dirty = False
        logger.debug("Acquired device")
        logger.debug("Setting random seed to %d", self._state.session.options.seed)
        self._weights.to_device()

    def detach(self) -> None:
        """Take the program from the device; what it has trained is on the host already."""
        self._state.complete_report()
        self._state.random = self._random.read()
        self._state.is_attached = False
        logger.debug("Detached from device")
