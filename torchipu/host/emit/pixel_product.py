"""Convolutions and their gradients as products over grids of pixels: which lanes meet which taps of which planes."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.table.conv_product import Grid, GridTap, GridTarget, Order
from torchipu.host.emit.conv_shape import Shape
from torchipu.optable.blocks import Along, Blocks


@dataclass(frozen=True, slots=True)
class Product:
    """Results of one product: a grid of lanes over planes of pixels, and the taps that each lane meets.

    Attributes:
        grid: Of lanes.
        target: Where they go.
        weights: Strides along groups, results and channels.
        taps: That each lane meets.
    """

    grid: Grid
    target: GridTarget
    weights: tuple[int, int, int]
    taps: tuple[GridTap, ...]

    @property
    def order(self) -> Order:
        """How the weights are read: whether a result's summands adjoin, or results or channels do, or neither."""
        places = tuple(tap.weight for tap in self.taps)
        if self.weights[2] == len(places) and places == tuple(range(len(places))):
            return Order.BY_ROW
        if self.weights[1] == 1 and len(places) == 1:
            return Order.PACKED
        return Order.BY_TAP if self.weights[2] == 1 else Order.GATHERED

    def blocks(self, lanes: int, rows: int) -> Blocks:
        """What of the results items of so many lanes and results write."""
        groups, results, down, across = self.grid.g, self.grid.m, self.grid.gh, self.grid.gw
        plane, first, row_step, step = self.target
        image = groups * results * plane
        along = Along(self.lanes, lanes, across, step, down, row_step, image)
        if step == 1 and row_step == across:  # rows adjoin
            along = Along(self.lanes, lanes, down * across, 1, 1, image, image)
        group = Along(groups, 1, groups, results * plane)
        return Blocks((group, along, Along(results, rows, results, plane)), first)

    @property
    def lanes(self) -> int:
        """Pixels of all images."""
        return self.grid.n * self.grid.gh * self.grid.gw


def forward_product(s: Shape) -> Product:
    """Return the convolution itself: every output meets the whole window."""
    taps = tuple(
        GridTap(kh * s.dh - s.ph, kw * s.dw - s.pw, kh * s.kw + kw) for kh in range(s.kh) for kw in range(s.kw)
    )
    grid = Grid(s.n, s.g, s.ic, s.oc, s.h, s.w, s.oh, s.ow, s.sh, s.sw)
    return Product(grid, GridTarget(s.oh * s.ow, 0, s.ow, 1), (s.oc * s.summands, s.summands, s.kh * s.kw), taps)


def input_products(s: Shape) -> list[Product]:
    """Return the gradient of the input: a product for each phase of the strides, over the taps that reach it."""
    products = []
    for row in range(min(s.sh, s.h)):
        for column in range(min(s.sw, s.w)):
            taps = tuple(
                GridTap((row + s.ph - kh * s.dh) // s.sh, (column + s.pw - kw * s.dw) // s.sw, kh * s.kw + kw)
                for kh in range(s.kh) if (row + s.ph - kh * s.dh) % s.sh == 0
                for kw in range(s.kw) if (column + s.pw - kw * s.dw) % s.sw == 0
            )
            grid = Grid(s.n, s.g, s.oc, s.ic, s.oh, s.ow, -(-(s.h - row) // s.sh), -(-(s.w - column) // s.sw), 1, 1)
            target = GridTarget(s.h * s.w, row * s.w + column, s.sh * s.w, s.sw)
            products.append(Product(grid, target, (s.oc * s.summands, s.kh * s.kw, s.summands), taps))
    return products
