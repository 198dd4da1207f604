"""Host steps of convolutions with half partials: products that read the windows where they lie.

Channels of a window's element are summed first, then the elements of the window. Images are laid out once with their
channels side by side and zeros around them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.half_partials import Layout, Partials, Places, Tap, emit_layout
from torchipu.host.emit.packing import packed_panels
from torchipu.optable.host_tensor import HostTensor, contiguous_strides
from torchipu.optable.planner import HostPlanner
from torchipu.optable.volume import Sizes, Volume


def _view(held: HostTensor, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> HostTensor:
    return HostTensor(held.buffer, held.offset + offset, shape, strides, held.dtype)


@dataclass(frozen=True, slots=True)
class _Image:
    """[N, D, H, W, G x C] with zeros around.

    Attributes:
        held: Where it lies.
        steps: From one place to the next in W, H, D and N.
        first: Where the place (0, 0, 0) of the image lies within.
    """

    held: HostTensor
    steps: tuple[int, int, int, int]
    first: int

    def at(self, place: Sizes) -> int:
        """Return where a place lies."""
        return self.first + sum(p * s for p, s in zip(place, self.steps[2::-1], strict=True))


def _laid_out(plan: HostPlanner, held: HostTensor, samples: int, channels: int, size: Sizes, margin: Sizes,
              beyond: Sizes) -> _Image:
    """Lay an image out with ``margin`` zeros before it and ``beyond`` behind it along each dimension."""
    padded = tuple(m + n + b for m, n, b in zip(margin, size, beyond, strict=True))
    fresh = plan.scratch((samples, *padded, channels))
    steps = contiguous_strides(fresh.shape)
    if any(margin) or any(beyond):
        emit_fill(plan, fresh, 0.0)
    first = sum(m * s for m, s in zip(margin, steps[1:4], strict=True))
    source = contiguous_strides((samples, channels, *size))
    shape = (samples, *size, channels)
    emit_copy(
        plan, _view(fresh, shape, steps, first), _view(held, shape, (source[0], *source[2:], source[1])),
    )
    return _Image(fresh, (steps[3], steps[2], steps[1], steps[0]), first)


def _strided(image: _Image, stride: Sizes) -> tuple[int, int, int, int]:
    """Return the steps of an image at every ``stride``-th place, W first, and of its samples."""
    w, h, d, n = image.steps
    return w * stride[2], h * stride[1], d * stride[0], n


def emit_forward(
    plan: HostPlanner, v: Volume, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
    partials: Partials, *, alpha: float = 1.0,
) -> None:
    """Emit a plain convolution; ``alpha`` here and below multiplies the sums."""
    taps, positions = prod(v.window), prod(v.out)
    reach = _three((o - 1) * s + d * (w - 1) + 1 for o, s, d, w in zip(
        v.out, v.stride, v.dilation, v.window, strict=True))
    beyond = _three(max(0, r - p - n) for r, p, n in zip(reach, v.padding, v.size, strict=True))
    image = _laid_out(plan, x, v.n, v.g * v.ic, v.size, v.padding, beyond)
    turned = _view(weight, (v.g, taps, v.ic, v.oc), (v.oc * v.ic * taps, 1, taps, v.ic * taps))
    layout = Layout(
        v.g, (v.ic, _panel_floats(taps * v.ic, v.oc), v.oc * positions),
        Places((*v.out[::-1], v.n), _strided(image, v.stride)), _out_steps(v.out, v.g * v.oc),
        _numbers(v.out), 0, v.n * positions, v.ic, 1,
        tuple(
            Tap(sum(k * d * s for k, d, s in zip(place, v.dilation, image.steps[2::-1], strict=True)), number)
            for number, place in enumerate(product(*(range(w) for w in v.window)))
        ),
        taps, v.oc, positions,
    )
    emit_layout(
        plan, layout, out, image.held, _packed(plan, turned), partials, alpha=alpha, addend=bias,
        addend_steps=(0, 0, 0) if bias is None else (v.oc, 0, 1),
    )


def _three(sizes: Iterable[int]) -> Sizes:
    """Return sizes of depth, height and width."""
    depth, height, width = sizes
    return depth, height, width


def _out_steps(size: Sizes, channels: int) -> tuple[int, int, int, int]:
    """Return the steps of [N, C, D, H, W] along W, H, D and N."""
    return 1, size[2], size[1] * size[2], channels * prod(size)


def _numbers(size: Sizes) -> tuple[int, int, int, int]:
    """Return the steps of the numbers of places, image after image."""
    return 1, size[2], size[1] * size[2], prod(size)


def _panel_floats(inner: int, columns: int) -> int:
    return -(-columns // 32) * inner * 32


def _packed(plan: HostPlanner, turned: HostTensor) -> HostTensor:
    """Pack weights that are shown as [G, taps, channels, columns]."""
    groups, taps, channels, columns = turned.shape
    fresh = plan.scratch((groups, taps * channels, columns))
    emit_copy(plan, _view(fresh, turned.shape, contiguous_strides(turned.shape)), turned)
    return packed_panels(plan, fresh)


def emit_input_gradient(
    plan: HostPlanner, v: Volume, dx: HostTensor, dy: HostTensor, weight: HostTensor, partials: Partials, *,
    alpha: float = 1.0,
) -> None:
    """Emit the gradient of a plain convolution's input: a convolution of the spread output with the turned window.

    The zeros between the places of the output add nothing: each phase of the strides meets the elements of the window
    that reach it.
    """
    taps, positions = prod(v.window), prod(v.size)
    # The places of the output that the input reads lie within these.
    margin = _three(-(-d * (w - 1) // s) for d, w, s in zip(v.dilation, v.window, v.stride, strict=True))
    beyond = _three(
        max(0, (n - 1 + p) // s - (o - 1)) + 1 for n, p, s, o in zip(v.size, v.padding, v.stride, v.out, strict=True)
    )
    image = _laid_out(plan, dy, v.n, v.g * v.oc, v.out, margin, beyond)
    turned = _view(weight, (v.g, taps, v.oc, v.ic), (v.oc * v.ic * taps, -1, v.ic * taps, taps), taps - 1)
    weights = plan.scratch(turned.shape)
    emit_copy(plan, weights, turned)
    steps, numbers = _out_steps(v.size, v.g * v.ic), _numbers(v.size)
    for phase in product(*(range(min(s, n)) for s, n in zip(v.stride, v.size, strict=True))):
        sizes = _three(-(-(n - f) // s) for n, f, s in zip(v.size, phase, v.stride, strict=True))
        apart = _three(steps[k] * v.stride[2 - k] for k in range(3))
        first = sum(f * s for f, s in zip(phase, steps[2::-1], strict=True))
        met = _met(v, phase)
        layout = Layout(
            v.g, (v.oc, _panel_floats(max(1, len(met)) * v.oc, v.ic), v.ic * positions),
            Places((*sizes[::-1], v.n), image.steps), (*apart, steps[3]),
            (*_three(numbers[k] * v.stride[2 - k] for k in range(3)), numbers[3]),
            first, v.n * positions, v.oc, 1,
            tuple(Tap(image.at(place), number) for place, number in met), taps, v.ic, positions,
        )
        chosen = _chosen(plan, weights, [number for _, number in met])
        emit_layout(plan, layout, dx, image.held, chosen, partials, alpha=alpha, first=first)


def _met(v: Volume, phase: tuple[int, ...]) -> list[tuple[Sizes, int]]:
    """Return, for each element of the turned window that a phase meets, the output's place there and its number."""
    found = []
    for number, place in enumerate(product(*(range(w) for w in v.window))):
        # Element w - 1 - place of the window as it was.
        reached = tuple(
            f + p - d * (w - 1 - k) for f, p, d, w, k in zip(
                phase, v.padding, v.dilation, v.window, place, strict=True)
        )
        if all(r % s == 0 for r, s in zip(reached, v.stride, strict=True)):
            found.append((_three(r // s for r, s in zip(reached, v.stride, strict=True)), number))
    return found


def _chosen(plan: HostPlanner, rows: HostTensor, numbers: list[int]) -> HostTensor:
    """Pack the weights of some elements of the window from [G, taps, channels, columns]."""
    groups, taps, channels, columns = rows.shape
    fresh = plan.scratch((groups, max(1, len(numbers)) * channels, columns))
    each = channels * columns
    for place, number in enumerate(numbers):
        shape = (groups, channels, columns)
        emit_copy(
            plan, _view(fresh, shape, (len(numbers) * each, columns, 1), place * each),
            _view(rows, shape, (taps * each, columns, 1), number * each),
        )
    return packed_panels(plan, fresh)


def emit_weight_gradient(
    plan: HostPlanner, v: Volume, dw: HostTensor, dy: HostTensor, x: HostTensor, partials: Partials, *,
    alpha: float = 1.0,
) -> None:
    """Emit the gradient of a plain convolution's weights: positions are the channels that are summed."""
    taps, positions = prod(v.window), prod(v.out)
    rows = v.n * positions
    by_group = _view(dy, (v.g * v.oc, v.n, positions), (positions, v.g * v.oc * positions, 1))
    left = plan.scratch((v.g * v.oc, rows))
    emit_copy(plan, _view(left, by_group.shape, contiguous_strides(by_group.shape)), by_group)
    reach = _three((o - 1) * s + d * (w - 1) + 1 for o, s, d, w in zip(
        v.out, v.stride, v.dilation, v.window, strict=True))
    beyond = _three(max(0, r - p - n) for r, p, n in zip(reach, v.padding, v.size, strict=True))
    image = _laid_out(plan, x, v.n, v.g * v.ic, v.size, v.padding, beyond)
    layout = Layout(
        v.g, (v.oc * rows, v.ic, v.oc * v.ic * taps), Places((v.oc, 1, 1, 1), (rows, 0, 0, 0)),
        (v.ic * taps, 0, 0, 0), (1, 0, 0, 0), 0, v.oc, rows, 1, (Tap(),), 1, v.ic, taps,
        Places((*v.out[::-1], v.n), _strided(image, v.stride)),
        tuple(
            (sum(k * d * s for k, d, s in zip(place, v.dilation, image.steps[2::-1], strict=True)), number)
            for number, place in enumerate(product(*(range(w) for w in v.window)))
        ),
    )
    emit_layout(plan, layout, dw, left, image.held, partials, alpha=alpha)
