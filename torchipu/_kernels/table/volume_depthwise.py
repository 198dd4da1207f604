"""The kernel of three-dimensional convolutions whose groups have a single channel."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

DEPTHWISE_RUN = 16  # results that are summed at once at least, and floats behind what they read


class VolumeDepthwiseInts(NamedTuple):
    """Integers of ``volume_depthwise``; sizes and steps are of depth, height and width.

    A depth of the input is laid out with its padding, rows and columns apart by what they leave over when they are
    divided by the strides: then what a tap takes lies one behind the other as the results do.

    Attributes:
        groups: Of all samples together with these: channels of the input.
        out_channels: Of one group.
        channels: Groups of a sample.
        size: Of the input.
        out: Of the output.
        window: Its taps.
        stride: Of the window.
        padding: Before the input; less than none leaves out what lies there.
        dilation: From tap to tap.
        laid_out: Rows and columns of a depth that are left over alike.
        held: Depths that are laid out at a time.
        depths: Of the output, of an item.
        is_turned: Whether the window lies the other way round, as for the gradient of the input.
        has_bias: Whether there is one.
    """

    groups: int
    out_channels: int
    channels: int
    size: tuple[int, int, int]
    out: tuple[int, int, int]
    window: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    laid_out: tuple[int, int]
    held: int
    depths: int
    is_turned: bool
    has_bias: bool


VOLUME_DEPTHWISE = Kernel(
    "volume_depthwise",
    {
        "result": "[groups][out_channels][outputs]",
        "input": "[groups][positions]",
        "weight": "[channels][out_channels][taps]",
        "bias?": "[channels * out_channels], where has_bias",
    },
    VolumeDepthwiseInts,
    Nothing,
    items="groups * blocks of depths",
    scratch="held depths, results of one rounded up to DEPTHWISE_RUN, and the places of taps",
)
