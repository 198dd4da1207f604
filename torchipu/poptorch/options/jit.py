"""``Options.Jit``, which is of no effect here."""

from __future__ import annotations

from typing import Self

from torchipu.poptorch._logging import logger
from torchipu.poptorch.options.values import OptionsDict


class _JitOptions(OptionsDict):
    """Options of the front end that PopTorch had before 3.1."""

    def traceModel(self, trace_model: bool) -> Self:
        """Refuse the front end that is gone.

        Args:
            trace_model: False, which changes nothing.

        Raises:
            ValueError: It is True.
        """
        self._check_frozen()
        if trace_model:
            raise ValueError("options.Jit.traceModel(True) is no longer supported")
        logger.warning("options.Jit.traceModel is deprecated and has no effect")
        return self
