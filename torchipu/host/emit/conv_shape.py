"""Sizes of a convolution, as its host steps share them."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.table.conv import ConvShape


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a 2-d convolution; ``ic`` and ``oc`` count the channels of one of the ``g`` groups."""

    n: int
    g: int
    ic: int
    oc: int
    h: int
    w: int
    oh: int
    ow: int
    kh: int
    kw: int
    sh: int
    sw: int
    ph: int
    pw: int
    dh: int
    dw: int

    @property
    def summands(self) -> int:
        """Products added up for one output."""
        return self.ic * self.kh * self.kw

    @property
    def macs(self) -> int:
        """Multiply-accumulates in all."""
        return self.output_elements * self.summands

    @property
    def input_elements(self) -> int:
        """Elements of all images."""
        return self.n * self.g * self.ic * self.h * self.w

    @property
    def output_elements(self) -> int:
        """Elements of all results."""
        return self.n * self.g * self.oc * self.oh * self.ow

    @property
    def is_pointwise(self) -> bool:
        """Whether the window is a single pixel and every pixel is used once."""
        is_single = (self.kh, self.kw, self.sh, self.sw, self.ph, self.pw) == (1, 1, 1, 1, 0, 0)
        return is_single and (self.h, self.w) == (self.oh, self.ow)

    @property
    def is_of_whole_images(self) -> bool:
        """Whether one window is the image: the convolution is a product of matrices, with a row for each image."""
        is_single = (self.g, self.oh, self.ow, self.ph, self.pw) == (1, 1, 1, 0, 0)
        is_dense = (self.dh == 1 or self.kh == 1) and (self.dw == 1 or self.kw == 1)
        return is_single and is_dense and (self.kh, self.kw) == (self.h, self.w)

    @property
    def reads_in_place(self) -> bool:
        """Whether summands are contiguous runs of the image as it is."""
        return (self.kw, self.sw, self.pw, self.sh, self.ph) == (1, 1, 0, 1, 0) and self.w == self.ow

    def of_kernel(self, rows: int, cols: int, *, direct: bool) -> ConvShape:
        """Return what every kernel begins with."""
        return ConvShape(
            n=self.n, g=self.g, ic=self.ic, oc=self.oc, h=self.h, w=self.w, oh=self.oh, ow=self.ow, kh=self.kh,
            kw=self.kw, sh=self.sh, sw=self.sw, ph=self.ph, pw=self.pw, dh=self.dh, dw=self.dw, rows=rows, cols=cols,
            direct=direct,
        )

    def expanded(self, rows: int, cols: int) -> int:
        """Floats of an expanded block of outputs."""
        if self.reads_in_place:
            return 0
        return self.ic * self.kw * self.sh * (rows + (self.kh - 1) * self.dh // self.sh) * cols
