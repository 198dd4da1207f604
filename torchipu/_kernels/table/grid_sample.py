"""Kernels that take images at the places that a grid says, and the gradients of the images and of the grid."""

from enum import IntEnum
from typing import NamedTuple

from .kernel import Kernel, Nothing

SAMPLED_POINTS = 64  # of which taps are worked out together
SAMPLED_CHANNELS = 8  # whose gradients an item adds up


class Interpolation(IntEnum):
    """Which pixels of an image count for a point; numbers are torch's."""

    BILINEAR = 0
    NEAREST = 1
    BICUBIC = 2


class Outside(IntEnum):
    """What is taken beyond the border; numbers are torch's."""

    ZEROS = 0
    BORDER = 1
    REFLECTION = 2


class GridSampleInts(NamedTuple):
    """Integers of all three.

    Attributes:
        channels: Of a sample.
        height: Of an image.
        width: Of an image.
        points: Of a sample's grid.
        interpolation: Which pixels count.
        outside: What is taken beyond the border.
        aligned: Whether -1 and 1 are the middles of the outermost pixels, and not their outer edges.
    """

    channels: int
    height: int
    width: int
    points: int
    interpolation: Interpolation
    outside: Outside
    aligned: bool


GRID_SAMPLE = Kernel(
    "grid_sample",
    {"result": "[samples][channels][points]", "images": "[samples][channels][height][width]",
     "grid": "[samples][points][2], columns before rows"},
    GridSampleInts, Nothing, items="samples * blocks of SAMPLED_POINTS",
)
GRID_SAMPLE_IMAGES = Kernel(
    "grid_sample_images",
    {"images_grad": "[samples][channels][height][width]", "result_grad": "[samples][channels][points]",
     "grid": "[samples][points][2]"},
    GridSampleInts, Nothing, items="samples * blocks of SAMPLED_CHANNELS",
)
GRID_SAMPLE_GRID = Kernel(
    "grid_sample_grid",
    {"grid_grad": "[samples][points][2]", "result_grad": "[samples][channels][points]",
     "images": "[samples][channels][height][width]", "grid": "[samples][points][2]"},
    GridSampleInts, Nothing, items="samples * blocks of SAMPLED_POINTS",
)
