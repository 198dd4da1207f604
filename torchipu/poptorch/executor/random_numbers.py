"""The random numbers of an executor's program."""

from __future__ import annotations

from torchipu.poptorch._logging import logger
from torchipu.poptorch.executor.state import State


class RandomNumbers:
    """Seed of the random numbers, and how far they have come.

    Args:
        state: The executor's; it keeps what was read until the next call.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def read(self) -> tuple[int, int]:
        """Return the seed and the count of calls."""
        state = self._state
        if state.random is None:
            session = state.session
            logger.debug("Reading random seed")
            logger.debug("Reading RNG state")
            state.random = (int(session.options.seed or 0), session.calls)
        return state.random

    def set(self, values: list[int]) -> None:
        """Go on from another seed and count of calls."""
        session = self._state.session
        seed, calls = values
        session.set_random_state(int(seed), int(calls))
        self._state.random = (int(seed), int(calls))
        logger.debug("Setting RNG state")
