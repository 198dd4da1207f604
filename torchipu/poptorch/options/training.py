"""``Options.Training``: accumulation, means, and the loss scale."""

from __future__ import annotations

from typing import Self

from torchipu.poptorch.enums import MeanReductionStrategy, ReductionType
from torchipu.poptorch.options.popart import _PopartOptions, _PopartUser


class _TrainingOptions(_PopartUser):
    """Options of training alone."""

    def __init__(self, popart: _PopartOptions) -> None:
        super().__init__(
            popart,
            gradient_accumulation=1,
            accumulation_and_replication_reduction_type=ReductionType.Mean,
            meanAccumulationAndReplicationReductionStrategy=MeanReductionStrategy.Post,
        )

    def gradientAccumulation(self, gradient_accumulation: int) -> Self:
        """Set how many micro-batches make one weight update.

        Args:
            gradient_accumulation: The number.
        """
        return self.set(gradient_accumulation=gradient_accumulation)

    def accumulationAndReplicationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set how gradients of micro-batches, replicas and processes are combined.

        Args:
            reduction_type: Mean or Sum.

        Raises:
            ValueError: It is something else.
        """
        if reduction_type not in (ReductionType.Mean, ReductionType.Sum) or not isinstance(
            reduction_type, ReductionType
        ):
            raise ValueError(
                "poptorch.Options().Training.accumulationAndReplicationReductionType must be set to "
                f"poptorch.ReductionType.Mean or poptorch.ReductionType.Sum, not {reduction_type!r}"
            )
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def accumulationReductionType(self, reduction_type: ReductionType) -> Self:
        """Set the same under the name that it had before PopTorch 2.1."""
        return self.accumulationAndReplicationReductionType(reduction_type)

    def setMeanAccumulationAndReplicationReductionStrategy(
        self, mean_reduction_strategy: MeanReductionStrategy
    ) -> Self:
        """Set when a mean of gradients is divided.

        Args:
            mean_reduction_strategy: With each gradient, or after the sum.
        """
        return self.set(meanAccumulationAndReplicationReductionStrategy=mean_reduction_strategy)

    def setAutomaticLossScaling(self, enabled: bool) -> Self:
        """Let the loss scale follow the gradients; it begins from the optimiser's ``loss_scaling``.

        Args:
            enabled: Whether to.
        """
        self._popart.set("automaticLossScalingSettings.enabled", enabled)
        return self

    def setConvolutionDithering(self, enabled: bool) -> Self:
        """Begin each convolution on another tile; memory alone is concerned.

        Args:
            enabled: Whether to.
        """
        self._popart.set("convolutionOptions", {"startTileMultiplier": "2" if enabled else "0"})
        return self
