"""How an executor follows the optimiser of its user."""

from __future__ import annotations

import torch

from torchipu.errors import OptionsError
from torchipu.poptorch._logging import logger
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.checks import adapt_frozen, adapt_options
from torchipu.poptorch.executor.errors import as_poptorch_error
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.executor.training_session import TrainingSession
from torchipu.poptorch.optim.attributes import AttributeTracker
from torchipu.poptorch.optim.optimizer import Executor, Optimizer, attach
from torchipu.poptorch.optim.supported import check


class FollowedOptimiser:
    """The optimiser whose values the device uses.

    Args:
        state: The executor's.
    """

    _tracker: AttributeTracker

    def __init__(self, state: State) -> None:
        self._state = state

    def begin(self) -> None:
        """Check the first optimiser and take note of what it has.

        Raises:
            AssertionError: It is of an unknown kind.
        """
        optimizer, options = self._state.optimizer, self._state.options
        assert optimizer is not None
        check(optimizer)
        adapt_options(options, optimizer)
        self._tracker = AttributeTracker(optimizer, options._relax_optimizer_checks)

    def take(self, optimizer: torch.optim.Optimizer, executor: Executor) -> None:
        """Let the device use the values of an optimiser from now on.

        Args:
            optimizer: The one in use, or another one of the same kind.
            executor: What another optimiser belongs to from now on.

        Raises:
            AssertionError: It is of an unknown kind.
            Error: A value that the program was compiled with as a constant is another now.
            ValueError: Its accumulators need a program of another kind.
        """
        state = self._state
        session, is_another = state.executable, optimizer is not state.optimizer
        if is_another:
            check(optimizer)
        if session is None:
            adapt_frozen(state.options, optimizer)
        elif state.fixed is not None:
            state.fixed.check(optimizer)
        self._tracker.check(optimizer)
        if is_another or (isinstance(session, TrainingSession) and session.changes_scale(optimizer)):
            executor._pull_optimiser()
        if is_another:
            attach(optimizer, executor)
        if isinstance(session, TrainingSession):
            _update(session, optimizer)
        state.optimizer = optimizer

    def pull(self) -> bool:
        """Bring the states to the host; return whether those of the device were newer."""
        state = self._state
        if not state.is_optimiser_dirty or state.executable is None:
            return False
        logger.debug("Writing optimiser state tensors from IPU to host.")
        state.executable.download(state.executable.states)
        state.is_optimiser_dirty = False
        return True


def _update(session: TrainingSession, optimizer: torch.optim.Optimizer) -> None:
    """Give a program the values of an optimiser."""
    logger.debug("Updating graph optimizer")
    for number in range(len(optimizer.param_groups)):
        logger.debug("Updating group %d optimizer", number)
    with instrumentation.as_plain(session.model):
        try:
            session.take_optimiser(optimizer)
        except OptionsError as error:
            raise as_poptorch_error(error) from error
    if isinstance(optimizer, Optimizer):
        optimizer.ipu_state_is_dirty = False
