"""What the planner of convolutions is asked: sizes, types and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchipu.device.convolutions.axes import Axis


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides on plans beside sizes.

    Attributes:
        is_half: Whether operands are half.
        unit: Output channels of a panel; see `torchipu.device.matrix_unit.conv_units`.
        partial_bytes: Of one partial.
        budget_bytes: What temporary values of a tile may take.
    """

    is_half: bool
    unit: int
    partial_bytes: int
    budget_bytes: int

    @property
    def element_bytes(self) -> int:
        """Of an operand."""
        return 2 if self.is_half else 4


@dataclass(frozen=True, slots=True)
class Problem:
    """A convolution, a gradient of it, or the product that the update of its weights is.

    Attributes:
        groups: Independent ones.
        batch: Samples.
        axes: The three dimensions of the image.
        inputs: Channels that are added up, of a group.
        outputs: Channels of the result, of a group.
        settings: Types and memory.
        is_update: Whether it is the weights' update: its operands are laid out anew on the tile.
        most_together: Groups that may be computed as one, with zeros between them.
        is_sliding_update: Whether it is the weights' update with the output's gradient as the window of a convolution,
            which vertices that need no matrix unit compute; channels of both operands are grouped anew for it.
    """

    groups: int
    batch: int
    axes: tuple[Axis, Axis, Axis]
    inputs: int
    outputs: int
    settings: Settings
    is_update: bool = False
    most_together: int = 1
    is_sliding_update: bool = False

    @property
    def is_pointwise(self) -> bool:
        """Whether no window has more than one element."""
        return all(axis.taps == 1 for axis in self.axes)

    @property
    def has_zeros(self) -> bool:
        """Whether zeros stand between the places of the input."""
        return any(axis.divisor > 1 for axis in self.axes)

    @property
    def spread(self) -> Problem:
        """The same with an input that has been written out with the zeros between its places."""
        first, second, third = (
            replace(axis, inputs=(axis.inputs - 1) * axis.divisor + 1, divisor=1) for axis in self.axes
        )
        return replace(self, axes=(first, second, third))
