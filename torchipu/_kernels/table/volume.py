"""Kernels of three-dimensional convolutions and their gradients."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

VOLUME_SUMMANDS = 512  # that volume_forward lays out at a time


class VolumeInts(NamedTuple):
    """Integers of the convolutions; sizes and steps are of depth, height and width.

    Attributes:
        samples: In the batch.
        groups: Of channels.
        in_channels: Of one group.
        out_channels: Of one group.
        size: Of the input.
        out: Of the output.
        window: Its taps.
        stride: Of the window.
        padding: Before the input.
        dilation: From tap to tap.
        rows: Of outputs that are laid out at a time; a row is ``out[2]`` long. Those of an item of ``volume_forward``.
        block: Channels of an item of ``volume_input``, summands of one of ``volume_weight``.
        has_bias: Whether ``volume_forward`` has one.
    """

    samples: int
    groups: int
    in_channels: int
    out_channels: int
    size: tuple[int, int, int]
    out: tuple[int, int, int]
    window: tuple[int, int, int]
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    rows: int = 0
    block: int = 0
    has_bias: bool = False


VOLUME_FORWARD = Kernel(
    "volume_forward",
    {
        "result": "[samples][groups * out_channels][outputs]",
        "input": "[samples][groups * in_channels][positions]",
        "weight": "[groups * out_channels][in_channels * taps]",
        "bias?": "[groups * out_channels], where has_bias",
    },
    VolumeInts,
    Nothing,
    items="samples * groups * blocks of rows",
    scratch="min(in_channels * taps, VOLUME_SUMMANDS) * rows * out[2] floats",
)
VOLUME_INPUT = Kernel(
    "volume_input",
    {
        "input_grad": "[samples][groups * in_channels][positions]",
        "result_grad": "[samples][groups * out_channels][outputs]",
        "weight": "[groups * out_channels][in_channels * taps]",
    },
    VolumeInts,
    Nothing,
    items="samples * groups * blocks of channels",
    scratch="block * taps * rows * out[2] floats",
)
VOLUME_WEIGHT = Kernel(
    "volume_weight",
    {
        "weight_grad": "[groups * out_channels][in_channels * taps], over all samples and outputs in one order",
        "result_grad": "[samples][groups * out_channels][outputs]",
        "input": "[samples][groups * in_channels][positions]",
    },
    VolumeInts,
    Nothing,
    items="groups * blocks of summands",
    scratch="2 * block * rows * out[2] floats",
)


class VolumeBiasInts(NamedTuple):
    """Integers of ``volume_bias``.

    Attributes:
        channels: Of a sample.
        positions: Of a channel.
    """

    channels: int
    positions: int


VOLUME_BIAS = Kernel(
    "volume_bias",
    {"result": "[samples * channels][positions], read and written", "bias": "[channels]"},
    VolumeBiasInts,
    Nothing,
    items="samples * channels",
)
