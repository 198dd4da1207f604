"""``Options.Precision``: types of partials, rounding, casts."""

from __future__ import annotations

from typing import Any, Self

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import HalfFloatCastingBehavior
from torchipu.poptorch.options.popart import _PopartUser


class _PrecisionOptions(_PopartUser):
    """Options of number formats and rounding."""

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Set the type in which products and convolutions are summed.

        Args:
            dtype: ``torch.float`` or ``torch.half``.

        Raises:
            ValueError: It is something else.
        """
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise ValueError(f"setPartialsType takes torch.float or torch.half, not {dtype!r}")
        self._popart.set("partialsTypeMatMuls", names[dtype])
        self._popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Round half results up or down by chance, with the true value as the mean.

        Args:
            enabled: Whether to.
        """
        self._popart.set("enableStochasticRounding", enabled)
        return self

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Stop at divisions by zero, invalid operations and overflow.

        Args:
            enabled: Whether to.

        Raises:
            AssertionError: It is no bool.
        """
        if not isinstance(enabled, bool):
            raise AssertionError("enableFloatingPointExceptions needs to be set to a bool")
        self._popart.set("enableFloatingPointChecks", enabled)
        return self

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Do nothing: mixed types follow PyTorch's rules since PopTorch 3.1."""
        self._check_frozen()
        logger.warning("halfFloatCasting is deprecated and has no effect: mixed types follow PyTorch's rules")
        return self

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Do nothing: running statistics keep the type that they have since PopTorch 3.1.

        Raises:
            ValueError: The argument is no bool.
        """
        self._check_frozen()
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        logger.warning("runningStatisticsAlwaysFloat is deprecated and has no effect: statistics keep their type")
        return self

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Switch `poptorch.autocast`, of PopTorch 2.1 to 3.0, on or off for the model.

        Args:
            autocast_enabled: Whether its regions take effect.
        """
        return self.createOrSet(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: Any) -> Self:
        """Set which ops `poptorch.autocast` computes in which type.

        Args:
            autocast_policy: A `poptorch.autocasting.Policy`.
        """
        self._check_frozen()
        self._values["autocast_policy"] = autocast_policy
        return self
