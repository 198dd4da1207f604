"""Images with the phases of a convolution's strides apart, so that its windows read neighbouring pixels side by side.

Where a window moves by many columns, the pixels that a vector of results meets at one place of the window lie that many
apart, and would be gathered one by one, for each place again. Taken apart by phases once, they adjoin.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchipu._kernels.table.conv_product import Grid, GridTap
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.pixel_product import Product, forward_product
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

LEAST_USES = 4
"""Places of the window at which a pixel is met: to bring it where they all find it takes a pass over the image."""
LEAST_USES_FAR = 2
"""Likewise where pixels would be gathered, as every second one need not be."""
FAR = 3  # columns between neighbouring results


@dataclass(frozen=True, slots=True)
class _Along:
    """The phases of one dimension: element r of phase i is pixel ``(r + first) * stride + i``.

    Attributes:
        size: Pixels.
        stride: Of the windows, and how many phases there are.
        first: What the first element of each phase is counted from, below 0 where windows reach beyond the image.
        count: Elements of a phase, those beyond the image included.
    """

    size: int
    stride: int
    first: int
    count: int

    @classmethod
    def of(cls, size: int, out: int, window: int, stride: int, padding: int, dilation: int) -> _Along:
        """Return the phases of a dimension of a convolution."""
        first, last = -padding // stride, ((window - 1) * dilation - padding) // stride
        return cls(size, stride, first, out + last - first)

    def inside(self, phase: int) -> tuple[int, int]:
        """Return the first element of a phase within the image, and the one behind the last."""
        begin = max(0, -self.first)
        end = -(-(self.size - phase) // self.stride) - self.first
        return begin, max(begin, min(self.count, end))

    def place(self, position: int) -> tuple[int, int]:
        """Return the phase of a pixel that a window meets, relative to where it begins, and its element."""
        return position % self.stride, position // self.stride - self.first


def serves(s: Shape) -> bool:
    """Whether it pays to take phases apart; places in what they make fit 32 bits.

    A window of stride 1 has one phase, which is the image with its borders: pixels that it meets adjoin without that,
    but then each of its places must be asked which of them lie within the image.
    """
    if (s.sh, s.sw, s.ph, s.pw) == (1, 1, 0, 0):
        return False
    down, across = _dimensions(s)
    elements = s.n * s.g * s.ic * s.sh * s.sw * down.count * across.count
    least = LEAST_USES_FAR if s.sw >= FAR else LEAST_USES
    return s.kh * s.kw >= least * s.sh * s.sw and elements < 2**31


def _dimensions(s: Shape) -> tuple[_Along, _Along]:
    return _Along.of(s.h, s.oh, s.kh, s.sh, s.ph, s.dh), _Along.of(s.w, s.ow, s.kw, s.sw, s.pw, s.dw)


def product(s: Shape) -> Product:
    """Return the convolution as a product over pixels whose phases are apart: a phase lies below the one before it."""
    down, across = _dimensions(s)
    plain, taps = forward_product(s), []
    for kh in range(s.kh):
        for kw in range(s.kw):
            (row_phase, row), (phase, column) = down.place(kh * s.dh - s.ph), across.place(kw * s.dw - s.pw)
            taps.append(GridTap((row_phase * s.sw + phase) * down.count + row, column, kh * s.kw + kw))
    grid = Grid(s.n, s.g, s.ic, s.oc, s.sh * s.sw * down.count, across.count, s.oh, s.ow, 1, 1)
    return Product(grid, plain.target, plain.weights, tuple(taps))


def emit(plan: HostPlanner, s: Shape, x: HostTensor) -> HostTensor:
    """Emit the image with its phases apart, ``[n g ic, phase of rows, phase of columns, rows, columns]``; return it.

    Args:
        plan: The planner.
        s: The convolution.
        x: Its input, row-major.
    """
    down, across = _dimensions(s)
    planes = s.n * s.g * s.ic
    apart = plan.scratch((planes, s.sh, s.sw, down.count, across.count), x.dtype)
    insides = [[along.inside(phase) for phase in range(along.stride)] for along in (down, across)]
    if all(one == (0, along.count) for along, each in zip((down, across), insides, strict=True) for one in each):
        shape = (planes, s.sh, s.sw, down.count, across.count)
        emit_copy(plan, apart, HostTensor(x.buffer, x.offset, shape, (s.h * s.w, s.w, 1, s.sh * s.w, s.sw), x.dtype))
        return apart
    emit_fill(plan, apart, 0.0)
    plane, phases, phase, row, _ = apart.strides
    for i, (top, bottom) in enumerate(insides[0]):
        for j, (left, right) in enumerate(insides[1]):
            inside = (planes, bottom - top, right - left)
            first = ((top + down.first) * s.sh + i) * s.w + (left + across.first) * s.sw + j
            to = i * phases + j * phase + top * row + left
            emit_copy(
                plan, HostTensor(apart.buffer, apart.offset + to, inside, (plane, row, 1), x.dtype),
                HostTensor(x.buffer, x.offset + first, inside, (s.h * s.w, s.sh * s.w, s.sw), x.dtype),
            )
    return apart
