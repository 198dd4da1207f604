"""How an executor follows the optimiser of its user."""

from __future__ import annotations

from typing import Any

import torch

from torchipu.errors import OptionsError
from torchipu.poptorch import instrumentation, optim, translation
from torchipu.poptorch._logging import logger
from torchipu.poptorch.executor_errors import as_poptorch_error
from torchipu.poptorch.optim_attributes import AttributeTracker, FixedValues
from torchipu.poptorch.options import Options
from torchipu.poptorch.session import Session, TrainingSession


class Optimised:
    """The part of `PoplarExecutor` that has to do with the optimiser."""

    _executable: Session | None
    _was_compiled: bool
    _options: Options
    _training: bool
    _optimizer: torch.optim.Optimizer | None
    _user_model: Any
    _is_optimiser_dirty: bool
    _tracker: AttributeTracker
    _fixed: FixedValues | None = None

    def _begin_optimiser(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note of what the first optimiser has."""
        self._tracker = AttributeTracker(optimizer, self._options._relax_optimizer_checks)

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the device use the values of an optimiser from now on.

        Args:
            optimizer: The one in use, after a change of its values, or another one of the same kind.

        Raises:
            AssertionError: The model is not wrapped for training, or the optimiser is of an unknown kind.
            Error: A value that the program was compiled with as a constant is another now.
            ValueError: Its accumulators need a program of another kind.
        """
        assert self._training, "setOptimizer is for models wrapped by poptorch.trainingModel"
        session, is_another = self._executable, optimizer is not self._optimizer
        if is_another:
            optim.check(optimizer)
            translation.check_strategy(self._options, optimizer, is_compiled=session is not None)
        self._tracker.check(optimizer)
        if isinstance(session, TrainingSession) and self._fixed is not None:
            self._fixed.check(optimizer)
        if is_another or (isinstance(session, TrainingSession) and session.changes_scale(optimizer)):
            self._pull_optimiser()
        if is_another:
            optim.attach(optimizer, self)
        if isinstance(session, TrainingSession):
            logger.debug("Updating graph optimizer")
            for number in range(len(optimizer.param_groups)):
                logger.debug("Updating group %d optimizer", number)
            with instrumentation.as_plain(session.model):
                try:
                    session.take_optimiser(optimizer)
                except OptionsError as error:
                    raise as_poptorch_error(error) from error
            if isinstance(optimizer, optim.Optimizer):
                optimizer.ipu_state_is_dirty = False
        self._optimizer = optimizer

    def _pull_optimiser(self) -> bool:
        """Bring the states of the optimiser to the host; return whether those of the device were newer."""
        if not self._is_optimiser_dirty or self._executable is None:
            return False
        logger.debug("Writing optimiser state tensors from IPU to host.")
        self._executable.download(self._executable.states)
        self._is_optimiser_dirty = False
        return True
