"""Copies of weights between the user's model and the device."""

from __future__ import annotations

from torchipu.poptorch._logging import logger
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.errors import in_poptorch_words
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.poptorch_core import createPoptorchError


class Weights:
    """Copies parameters and buffers, and knows which side has the newer ones.

    Args:
        state: The executor's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def to_host(self) -> None:
        """Copy what the device has to the user's model.

        Raises:
            Error: The model has some in another shape, or without memory; all others were copied.
        """
        state = self._state
        session = state.session
        logger.debug("Writing weights from IPU to host")
        state.is_dirty = False
        with in_poptorch_words():
            session.download(session.weights)
        state.host_version += 1

    def to_device(self) -> None:
        """Copy what the user's model has to the device; the first time after a compilation, states too.

        Raises:
            Error: The model has some in another shape, or without memory; none was copied.
        """
        session = self._state.session
        self._state.is_dirty = False
        instrumentation.fetch_tensors(self._state.holder)  # what another executor has trained of them
        with in_poptorch_words():
            if session.must_upload:
                session.upload([*session.weights, *session.states])
                session.must_upload = False
            else:
                session.upload(session.weights)
        logger.debug("Writing weights from host to IPU memory")
        trainer = instrumentation.owner_of(self._state.user_model)
        self._state.seen_version = getattr(trainer, "_host_version", 0)

    def is_behind(self, trainer: instrumentation.Owner) -> bool:
        """Whether a trainer of the same model has brought weights to the host since `to_device`."""
        return self._state.seen_version != trainer._host_version

    def leave(self) -> None:
        """Leave what was trained to the user's module, whose executor ends."""
        if self._state.is_dirty:
            self._state.is_dirty = False
            with in_poptorch_words():
                self._state.session.download(self._state.session.weights)

    def named_buffers_to_device(self) -> None:
        """Copy the buffers that the options name to the device.

        Raises:
            Error: They name none.
        """
        session = self._state.session
        names = self._state.options._popart.options.get("updatableNamedBuffers")
        if not names:
            raise createPoptorchError(
                "No named buffers marked as updatable: name them with poptorch.Options().updatableNamedBuffers"
            )
        with in_poptorch_words():
            session.upload(session.buffers(names))
