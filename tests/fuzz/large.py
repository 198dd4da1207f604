"""Programs of few lines and large sizes, for what kernels do only there: blocks, panels, chunks of threads, tails.

An operator is drawn with sizes, each operand with a view of how it lies, and a line behind it through whose gradient it
is differentiated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.generate import has_gradients
from tests.fuzz.program import Given, Node, Program

SIZES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 64, 65, 96, 100, 129, 197, 256, 300, 385, 512, 640)
SIDES = (1, 2, 3, 5, 7, 8, 14, 15, 17, 28, 33)
MOST_WORK, MOST_ELEMENTS = 2e7, 3e5
VIEWS = (
    "{0}", "{0}", "{0}", "{0}.mT.contiguous().mT", "{0}[..., :1].expand_as({0})", "{0}[..., :1, :].expand_as({0})",
    "{0}[:1].expand_as({0})", "torch.cat([{0}, {0}], -1)[..., ::2]", "torch.cat([{0}, {0}], -1)[..., {0}.shape[-1]:]",
    "{0} * 2.0", "{0}.flip(-1)",
)
ENDS = (
    "{0}", "{0} * 1.0", "{0}.sum(-1)", "{0}.sum(-1, keepdim=True).square()", "F.relu({0})", "F.gelu({0}) + {0}",
    "{0}.mT * 2.0", "{0}[..., :1]", "{0}.mean()", "({0}.mean(0) * 0.1).tanh()",
)


@dataclass(slots=True)
class Drawn:
    """What a form gives: its text, the sizes of its operands, and those of them that are integers below a bound."""

    text: str
    shapes: tuple[tuple[int, ...], ...]
    bounds: dict[int, int] = field(default_factory=dict)


FORMS: list[Callable[[random.Random], Drawn]] = []


def _form(draw: Callable[[random.Random], Drawn]) -> Callable[[random.Random], Drawn]:
    FORMS.append(draw)
    return draw


def _sizes(rng: random.Random, dims: int, most: float = MOST_ELEMENTS) -> tuple[int, ...]:
    while True:
        sizes = tuple(rng.choice(SIZES) for _ in range(dims))
        if math.prod(sizes) <= most:
            return sizes


@_form
def _product(rng: random.Random) -> Drawn:
    rows, inner, columns = _sizes(rng, 3, MOST_WORK)
    batch = (rng.choice((2, 3, 7)),) if rng.random() < 0.4 and rows * inner * columns < MOST_WORK / 7 else ()
    left, right = (*batch, rows, inner), (*batch, inner, columns)
    match rng.randrange(5):
        case 0:
            return Drawn("{0}.mT @ {1}", ((*batch, inner, rows), right))
        case 1:
            return Drawn("F.linear({0}, {1})", (left, (columns, inner)))
        case 2:
            return Drawn("F.linear({0}, {1}, {2}[0])", (left, (columns, inner), (1, columns)))
        case 3:
            return Drawn("{2} + {0} @ {1} * 0.5", (left, right, (*batch, rows, columns)))
    return Drawn("{0} @ {1}", (left, right))


@_form
def _convolution(rng: random.Random) -> Drawn:
    while True:
        samples, channels, filters = rng.choice((1, 2, 3, 5)), *(rng.choice(SIZES[:16]) for _ in range(2))
        height, width, kernel = rng.choice(SIDES), rng.choice(SIDES), rng.choice((1, 1, 2, 3, 3, 5, 7))
        groups = rng.choice((1, 1, 1, 2, channels))
        filters = filters if groups == 1 else groups * rng.choice((1, 2))
        stride, padding, dilation = rng.choice((1, 1, 2, 3)), rng.choice((0, kernel // 2)), rng.choice((1, 1, 1, 2))
        fits = min(height, width) + 2 * padding > dilation * (kernel - 1)
        work = samples * filters * channels * height * width * kernel**2 / groups
        if fits and channels % groups == 0 and work < MOST_WORK:
            break
    settings = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    shapes = (samples, channels, height, width), (filters, channels // groups, kernel, kernel)
    if rng.random() < 0.2 and groups == 1:
        turned = f"stride={stride}, padding={min(padding, dilation * (kernel - 1))}, dilation={dilation}"
        return Drawn(f"F.conv_transpose2d({{0}}, {{1}}, {turned})", (shapes[0], (channels, filters, kernel, kernel)))
    return Drawn(f"F.conv2d({{0}}, {{1}}, {settings})", shapes)


@_form
def _attention(rng: random.Random) -> Drawn:
    batch, heads, width = rng.choice((1, 2, 3)), rng.choice((1, 2, 5)), rng.choice((1, 3, 8, 16, 20, 32, 64, 80))
    queries, keys = rng.choice(SIZES[:18]), rng.choice(SIZES[:18])
    masks = ("", ", is_causal=True", ", attn_mask={0}[..., :1] * 0.5", ", scale=0.3")
    key = (batch, heads, keys, width)
    return Drawn(f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{rng.choice(masks)})",
                 ((batch, heads, queries, width), key, key))


@_form
def _along(rng: random.Random) -> Drawn:
    shape = _sizes(rng, rng.choice((2, 3)))
    dim = rng.randrange(len(shape))
    text = rng.choice((
        "F.softmax({0}, DIM)", "F.log_softmax({0}, DIM)", "{0}.cumsum(DIM)", "{0}.sum(DIM, keepdim=True) + {0}",
        "{0}.var(DIM, unbiased=False, keepdim=True)", "{0}.logsumexp(DIM, keepdim=True)", "F.normalize({0}, dim=DIM)",
        "F.layer_norm({0}, ({0}.shape[-1],))", "F.rms_norm({0}, ({0}.shape[-1],))", "{0}.amax(DIM, keepdim=True)",
        "{0}.roll(3, DIM) * {0}", "torch.cat([{0}, {0} * 2.0], DIM)", "{0}.sort(DIM).values",
        "{0}.norm(dim=DIM, keepdim=True)",
    ))
    return Drawn(text.replace("DIM", str(dim)), (shape,))


@_form
def _together(rng: random.Random) -> Drawn:
    shape = _sizes(rng, rng.choice((2, 3)))
    other = tuple(1 if rng.random() < 0.3 else size for size in shape)
    text = rng.choice((
        "{0} * {1} + {1}", "torch.where({0} > {1}, {0} * 2.0, {1})", "F.silu({0}) * {1}", "({0} + {1}).tanh()",
        "torch.maximum({0}, {1}) - {0}",
    ))
    return Drawn(text, (shape, other))


@_form
def _normalised(rng: random.Random) -> Drawn:
    shape = rng.choice((2, 3, 8)), rng.choice((4, 12, 16, 32)), rng.choice(SIDES[3:]), rng.choice(SIDES[3:])
    text = rng.choice((
        "F.batch_norm({0}, None, None, {1}[0], {1}[0] * 0.5, training=True)", "F.group_norm({0}, 4, {1}[0])",
        "F.instance_norm({0}) * {1}[0][:, None, None]", "F.relu(F.batch_norm({0}, None, None, {1}[0], training=True))",
    ))
    return Drawn(text, (shape, (1, shape[1])))


@_form
def _pooled(rng: random.Random) -> Drawn:
    shape = rng.choice((1, 2, 5)), rng.choice((1, 3, 17, 32)), rng.choice(SIDES[4:]), rng.choice(SIDES[4:])
    size, stride, padding, ceil = rng.choice((2, 3)), rng.choice((1, 2, 3)), rng.choice((0, 1)), rng.random() < 0.4
    kind = rng.choice(("max", "avg"))
    text = f"F.{kind}_pool2d({{0}}, {size}, {stride}, {padding}, ceil_mode={ceil})"
    return Drawn(rng.choice((text, text, "F.interpolate({0}, scale_factor=2.0, mode='bilinear')")), (shape,))


@_form
def _looked_up(rng: random.Random) -> Drawn:
    rows, width = _sizes(rng, 2)
    number = rng.choice(SIZES)
    text = rng.choice((
        "F.embedding({1}[0].long(), {0})", "{0}[{1}[0].long()]", "{0}.index_select(0, {1}[0].long())",
        "torch.zeros_like({0}).index_add(0, {1}[0].long(), {0}[{1}[0].long()])",
        "F.one_hot({1}[0].long(), ROWS).to({0}.dtype) @ {0}",
    ))
    return Drawn(text.replace("ROWS", str(rows)), ((rows, width), (1, number)), {1: rows})


@_form
def _lost(rng: random.Random) -> Drawn:
    rows, classes = _sizes(rng, 2)
    how = rng.choice(("mean", "sum", "none"))
    text = rng.choice((
        f"F.cross_entropy({{0}}, {{1}}[0].long(), reduction='{how}', label_smoothing=0.1)",
        f"F.cross_entropy({{0}}, {{1}}[0].long(), reduction='{how}')",
        f"F.mse_loss({{0}}, {{0}}.flip(0), reduction='{how}')",
    ))
    return Drawn(text, ((rows, classes), (1, rows)), {1: classes})


def generate(seed: int) -> Program:
    """Return the program of a seed."""
    rng = random.Random(f"large {seed}")
    while True:
        program = _drawn(rng)
        if has_gradients(program):
            return program


def _drawn(rng: random.Random) -> Program:
    drawn = rng.choice(FORMS)(rng)
    dtype = "half" if rng.random() < 0.1 else "float"
    inputs = tuple(
        Given(shape, "int", bound=drawn.bounds[place], seed=rng.randrange(1 << 30)) if place in drawn.bounds
        else Given(shape, dtype, rng.choice(("contiguous", "contiguous", "transposed", "strided")),
                   gradient=rng.random() < 0.7, seed=rng.randrange(1 << 30))
        for place, shape in enumerate(drawn.shapes)
    )
    nodes, operands = [], list(range(len(inputs)))
    for place, given in enumerate(inputs):
        view = rng.choice(VIEWS) if place not in drawn.bounds and len(given.shape) > 1 else "{0}"
        if view != "{0}":
            operands[place] = len(inputs) + len(nodes)
            nodes.append(Node(view, (place,), (dtype,), is_view="expand" in view))
    nodes.append(Node(drawn.text, tuple(operands), (dtype,)))
    last = len(inputs) + len(nodes) - 1
    end = rng.choice(ENDS)
    if end != "{0}":
        nodes.append(Node(end, (last,), (dtype,)))
        last += 1
    return Program(inputs, tuple(nodes), (last,))
