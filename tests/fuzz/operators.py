"""What programs are made of: for each kind of operator, how a call of it on values that exist is drawn.

A draw returns None where no value fits. What it returns may still be refused by eager PyTorch; the generator then draws
anew. Sizes stay small: a defect of a compiler shows in 24 elements as in 24 million.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tests.fuzz.program import NAMES


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the program so far: its number, and what eager PyTorch has for it."""

    number: int
    tensor: torch.Tensor

    @property
    def dtype(self) -> str:
        """Its element type, a key of `DTYPES`."""
        return NAMES[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor.shape)

    @property
    def is_floating(self) -> bool:
        """Whether it is of floating point."""
        return self.tensor.is_floating_point()


@dataclass(frozen=True, slots=True)
class Call:
    """A line drawn: its text, its operands, and whether results share memory with one of them."""

    text: str
    operands: tuple[Value, ...]
    is_view: bool = False


Draw = Callable[[random.Random, Sequence[Value]], "Call | None"]
DRAWS: dict[str, tuple[Draw, float]] = {}
"""By name: a draw, and how often it is taken."""


def _drawn(weight: float) -> Callable[[Draw], Draw]:
    def enter(draw: Draw) -> Draw:
        DRAWS[draw.__name__.lstrip("_")] = (draw, weight)
        return draw

    return enter


def _one_of(rng: random.Random, values: Sequence[Value], fits: Callable[[Value], bool]) -> Value | None:
    fitting = [value for value in values if fits(value)]
    # Later values more often: programs get deep, and earlier ones still fan out.
    return fitting[max(rng.randrange(len(fitting)), rng.randrange(len(fitting)))] if fitting else None


def _floating(rng: random.Random, values: Sequence[Value], dims: int = 0) -> Value | None:
    return _one_of(rng, values, lambda value: value.is_floating and len(value.shape) >= dims)


def _dim(rng: random.Random, value: Value) -> int:
    dim = rng.randrange(len(value.shape))
    return dim - len(value.shape) if rng.random() < 0.3 else dim


def _sized(rng: random.Random, value: Value, least: int = 1) -> int | None:
    """Draw a dimension of a least size."""
    dims = [dim for dim, size in enumerate(value.shape) if size >= least]
    return rng.choice(dims) if dims else None


UNARY = (
    "torch.relu({0})", "torch.tanh({0})", "torch.sigmoid({0})", "-{0}", "{0}.abs()", "torch.exp(-{0}.abs())",
    "F.gelu({0})", "F.silu({0})", "torch.sin({0})", "{0} * {0}", "({0}.abs() + 1.0).log()", "({0} * {0} + 0.5).sqrt()",
    "({0}.abs() + 0.5).reciprocal()", "torch.rsqrt({0}.abs() + 1.0)", "{0}.clamp(-0.75, 1.25)", "F.softplus({0})",
    "F.leaky_relu({0}, 0.1)", "F.elu({0})", "F.hardswish({0})", "torch.erf({0})", "{0} * 0.5 + 1.0", "1.5 - {0}",
    "F.gelu({0}, approximate='tanh')", "torch.cos({0})", "{0}.clone()", "torch.atan({0})", "F.mish({0})", "{0} / 3.0",
    "{0}.neg().exp2().clamp(max=8.0)", "torch.nan_to_num({0})", "torch.where({0} > 0.25, {0}, {0} * 0.5)",
)


@_drawn(6)
def _unary(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _floating(rng, values)
    return Call(rng.choice(UNARY), (value,)) if value else None


BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} / ({1}.abs() + 1.0)", "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})", "torch.add({0}, {1}, alpha=0.5)", "torch.where({0} > {1}, {0}, {1} * 0.5)",
    "torch.atan2({0}, {1}.abs() + 1.0)",
    "torch.lerp({0}, {1}, 0.25)", "torch.sub({0}, {1}, alpha=2)", "torch.hypot({0}, {1}.abs() + 1.0)",
)


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    try:
        return len(torch.broadcast_shapes(tuple(a), tuple(b))) <= 4
    except RuntimeError:
        return False


@_drawn(6)
def _binary(rng: random.Random, values: Sequence[Value]) -> Call | None:
    left = _floating(rng, values)
    if left is None:
        return None
    right = _one_of(rng, values, lambda value: value.is_floating and _broadcasts(left.shape, value.shape))
    text = rng.choice(BINARY)
    if "where" in text or "lerp" in text:
        right = right if right and right.dtype == left.dtype else left
    return Call(text, (left, right)) if right else None


@_drawn(1.5)
def _masked(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _floating(rng, values)
    if value is None:
        return None
    mask = _one_of(rng, values, lambda other: other.dtype == "bool" and _broadcasts(value.shape, other.shape))
    if mask is None or rng.random() < 0.3:
        return Call(rng.choice(("{0} > 0.1", "{0} <= -0.2", "({0} * 2.0).isfinite()")), (value,))
    other = _one_of(
        rng, values, lambda a: a.is_floating and a.dtype == value.dtype and _broadcasts(value.shape, a.shape),
    ) or value
    text = rng.choice(("{0}.masked_fill({1}, -2.0)", "torch.where({1}, {0}, {2})", "{0} * {1}", "~{1}"))
    if "{2}" in text:
        return Call(text, (value, mask, other))
    return Call("~{0}", (mask,)) if text == "~{1}" else Call(text, (value, mask))


@_drawn(1.5)
def _cast(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: value.is_floating or value.dtype in ("bool", "int"))
    if value is None:
        return None
    other = "FLOAT" if value.dtype == "half" else rng.choice(("HALF", "FLOAT"))
    # A copy in any case: in float64 every cast between floating types would be the value itself.
    return Call(f"{{0}}.to({other}, copy=True)", (value,))


VIEWS = ("unsqueeze", "transpose", "permute", "reshape", "flatten", "select", "slice", "narrow", "expand")


@_drawn(3)
def _view(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: 1 <= len(value.shape) <= 4)
    if value is None:
        return None
    kind = rng.choice(VIEWS)
    dim, dims = _dim(rng, value), len(value.shape)
    if kind == "unsqueeze" and dims < 4:
        return Call(f"{{0}}.unsqueeze({dim})", (value,), is_view=True)
    if kind == "transpose":
        return Call(f"{{0}}.transpose({dim}, {_dim(rng, value)})", (value,), is_view=True)
    if kind == "permute":
        return Call(f"{{0}}.permute({rng.sample(range(dims), dims)})", (value,), is_view=True)
    if kind == "reshape":
        return Call(f"{{0}}.reshape({_other_sizes(rng, value.tensor.numel())})", (value,), is_view=True)
    if kind == "flatten":
        return Call(f"{{0}}.flatten({rng.randrange(dims)})", (value,), is_view=True)
    if kind == "expand" and dims < 4:
        return Call(f"{{0}}.expand({rng.randint(1, 3)}, *{value.shape})", (value,), is_view=True)
    dim = _sized(rng, value)
    if dim is None:
        return None
    size = value.shape[dim]
    if kind == "select":
        return Call(f"{{0}}.select({dim}, {rng.randrange(-size, size)})", (value,), is_view=True)
    if kind == "narrow":
        start = rng.randrange(size)
        return Call(f"{{0}}.narrow({dim}, {start}, {rng.randint(1, size - start)})", (value,), is_view=True)
    cut = f"{rng.randrange(size)}:{rng.choice(('', size, -1 if size > 1 else ''))}:{rng.choice((1, 1, 2, 3))}"
    return Call(f"{{0}}[{', '.join([':'] * dim + [cut])}]", (value,), is_view=True)


def _other_sizes(rng: random.Random, number: int) -> list[int]:
    """Draw up to four sizes whose product is a number of elements."""
    sizes: list[int] = []
    left = number
    for _ in range(rng.randint(0, 3)):
        divisors = [divisor for divisor in range(1, min(left, 12) + 1) if left % divisor == 0]
        if not divisors:
            break
        sizes.append(rng.choice(divisors))
        left //= sizes[-1]
    return [*sizes, left]


@_drawn(1)
def _moved(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: len(value.shape) >= 1)
    if value is None:
        return None
    dim = _dim(rng, value)
    text = rng.choice((
        f"{{0}}.flip({dim})", f"{{0}}.roll({rng.randint(-3, 3)}, {dim})", "{0}.repeat(*SIZES)", "{0}.tril()",
        "{0}.triu(1)", f"F.pad({{0}}, ({rng.randint(-1, 2)}, {rng.randint(0, 2)}))",
        f"{{0}}.repeat_interleave(2, {dim})",
    ))
    if "tri" in text and (len(value.shape) < 2 or value.dtype == "bool"):
        return None
    return Call(text.replace("*SIZES", ", ".join(str(rng.randint(1, 2)) for _ in value.shape)), (value,))


@_drawn(2)
def _joined(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: 1 <= len(value.shape) <= 3 and value.is_floating)
    if value is None:
        return None
    dim = rng.randrange(len(value.shape))
    rest = [size for place, size in enumerate(value.shape) if place != dim]
    fitting = [
        other for other in values if other.dtype == value.dtype and len(other.shape) == len(value.shape)
        and [size for place, size in enumerate(other.shape) if place != dim] == rest
    ]
    chosen = tuple(rng.choice(fitting) for _ in range(rng.randint(1, 3)))
    same = tuple(other for other in chosen if other.shape == value.shape)
    if same and rng.random() < 0.3:
        return Call(f"torch.stack([{', '.join(f'{{{k}}}' for k in range(len(same)))}], {dim})", same)
    return Call(f"torch.cat([{', '.join(f'{{{k}}}' for k in range(len(chosen)))}], {dim})", chosen)


@_drawn(1)
def _parted(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: any(size >= 2 for size in value.shape))
    dim = _sized(rng, value, 2) if value else None
    if value is None or dim is None:
        return None
    first = rng.randint(1, value.shape[dim] - 1)
    rest = value.shape[dim] - first
    return Call(f"{{r}} = {{0}}.split([{first}, {rest}], {dim})", (value,), is_view=True)


REDUCTIONS = ("sum", "mean", "amax", "amin", "all dims", "var", "norm", "logsumexp", "two dims", "prod", "max")


@_drawn(4)
def _reduced(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: value.is_floating and len(value.shape) >= 1 and value.tensor.numel() > 0)
    if value is None:
        return None
    dim, keep = _dim(rng, value), rng.random() < 0.5
    kind = rng.choice(REDUCTIONS)
    if kind == "all dims":
        return Call(rng.choice(("{0}.sum()", "{0}.mean()", "{0}.pow(2).mean()", "{0}.max()")), (value,))
    if kind == "two dims" and len(value.shape) >= 2:
        dims = rng.sample(range(len(value.shape)), 2)
        return Call(f"{{0}}.{rng.choice(('sum', 'mean'))}({dims}, keepdim={keep})", (value,))
    if kind == "var":
        return Call(f"{{0}}.var({dim}, unbiased=False, keepdim={keep})", (value,))
    if kind == "norm":
        return Call(f"({{0}} * {{0}}).sum({dim}, keepdim={keep}).add(1.0).sqrt()", (value,))
    if kind == "max":
        return Call(f"{{0}}.{rng.choice(('max', 'min'))}({dim}, keepdim={keep}).values", (value,))
    name = kind if kind in ("sum", "mean", "amax", "amin", "logsumexp", "prod") else "sum"
    if name == "prod":
        return Call(f"({{0}} * 0.5 + 1.0).clamp(0.5, 1.5).prod({dim}, keepdim={keep})", (value,))
    return Call(f"{{0}}.{name}({dim}, keepdim={keep})", (value,))


@_drawn(2)
def _along(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: value.is_floating and len(value.shape) >= 1 and value.tensor.numel() > 0)
    if value is None:
        return None
    dim, last = _dim(rng, value), value.shape[-1]
    text = rng.choice((
        f"torch.softmax({{0}}, {dim})", f"torch.log_softmax({{0}}, {dim})", f"{{0}}.cumsum({dim})",
        f"F.layer_norm({{0}}, ({last},))", f"{{0}}.sort({dim}).values", f"F.normalize({{0}}, dim={dim})",
        f"{{0}}.topk({rng.randint(1, last)}, -1).values", f"{{0}} - {{0}}.mean({dim}, keepdim=True)",
    ))
    return Call(text, (value,))


@_drawn(4)
def _product(rng: random.Random, values: Sequence[Value]) -> Call | None:
    left = _one_of(rng, values, lambda value: value.is_floating and 1 <= len(value.shape) <= 4)
    if left is None:
        return None

    def fits(other: Value) -> bool:
        if other.dtype != left.dtype or not 1 <= len(other.shape) <= 4:
            return False
        rows = other.shape[-2] if len(other.shape) >= 2 else other.shape[0]
        return rows == left.shape[-1] and _broadcasts(left.shape[:-2], other.shape[:-2])

    right = _one_of(rng, values, fits)
    if right is not None:
        return Call("{0} @ {1}", (left, right))
    like = _one_of(rng, values, lambda other: (
        other.dtype == left.dtype and len(other.shape) == 2 and len(left.shape) >= 2
        and other.shape[1] == left.shape[-1]
    ))
    if like is not None:
        return Call(rng.choice(("F.linear({0}, {1})", "{0} @ {1}.t()")), (left, like))
    return Call("{0} @ {0}.transpose(-1, -2)", (left,)) if len(left.shape) >= 2 else None


@_drawn(1)
def _attention(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda v: v.is_floating and len(v.shape) in (3, 4) and v.tensor.numel() > 0)
    if value is None:
        return None
    causal = rng.random() < 0.5
    return Call(f"F.scaled_dot_product_attention({{0}}, {{0}} * 0.5, {{0}}, is_causal={causal})", (value,))


@_drawn(2)
def _windowed(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda v: (
        v.is_floating and len(v.shape) == 4 and min(v.shape) >= 1 and min(v.shape[2:]) >= 2
    ))
    if value is None:
        return None
    channels = value.shape[1]
    size, stride, padding = rng.randint(1, 3), rng.randint(1, 2), rng.randint(0, 1)
    if rng.random() < 0.4:
        padding = min(padding, size // 2)
        return Call(rng.choice((
            f"F.max_pool2d({{0}}, {size}, {stride}, {padding})", f"F.avg_pool2d({{0}}, {size}, {stride}, {padding})",
            "F.adaptive_avg_pool2d({0}, (2, 1))", "F.interpolate({0}, scale_factor=2.0)",
            "F.interpolate({0}, scale_factor=2.0, mode='bilinear')",
        )), (value,))
    weights = _one_of(rng, values, lambda w: (
        len(w.shape) == 4 and w.dtype == value.dtype and w.shape[1] >= 1 and channels % w.shape[1] == 0
        and w.shape[0] % (channels // w.shape[1]) == 0 and w.shape[0] > 0
    ))
    if weights is None:
        return None
    groups = channels // weights.shape[1]
    dilation = rng.choice((1, 1, 2))
    settings = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    return Call(f"F.conv2d({{0}}, {{1}}, {settings})", (value, weights))


@_drawn(1.5)
def _indexed(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: value.is_floating and len(value.shape) >= 1 and value.shape[0] >= 1)
    index = _one_of(rng, values, lambda value: value.dtype in ("int", "long") and value.tensor.numel() > 0)
    if value is None or index is None:
        return None
    size, dim = value.shape[0], len(value.shape)
    numbers = f"({{1}} % {size}).long()"
    flat = f"{numbers}.flatten()"
    texts = [
        f"{{0}}[{numbers}]", f"{{0}}.index_select(0, {flat})", f"F.one_hot({numbers}, {size}).to({{0}}.dtype)",
        f"torch.zeros_like({{0}}).index_add(0, {flat}, {{0}}[{flat}])", f"{{0}}.index_fill(0, {flat}[:1], 0.5)",
        f"{{0}}.gather(0, {flat}[:1].reshape({[1] * dim}))",
    ]
    texts += [f"F.embedding({numbers}, {{0}})"] * (dim == 2)
    texts += [f"{{0}}.scatter_add(0, {flat}, {{0}}[{flat}])"] * (dim == 1)
    return Call(rng.choice(texts), (value, index))


@_drawn(1)
def _integral(rng: random.Random, values: Sequence[Value]) -> Call | None:
    value = _one_of(rng, values, lambda value: value.dtype == "int")
    if value is None:
        return None
    texts = ("{0} + 3", "{0} * 2 - 1", "{0} // 2", "{0} % 3", "{0}.abs().clamp(max=5)", "-{0}", "{0} == 1")
    return Call(rng.choice(texts), (value,))


WRITES = (".mul_(0.5)", ".add_({1})", ".copy_({1})", ".zero_()", ".clamp_(min=0.0)", ".mul_({1})", ".fill_(0.25)")


@_drawn(2)
def _written(rng: random.Random, values: Sequence[Value]) -> Call | None:
    """Draw a write into a value, or into a copy of one; what eager refuses to differentiate is drawn anew."""
    # Torch says of a write into elements that share memory only that it is undefined.
    value = _one_of(rng, values, lambda a: a.is_floating and len(a.shape) >= 1 and 0 not in a.tensor.stride())
    if value is None:
        return None
    part = rng.choice(("", "[..., ::2]", "[:1]", "[..., 0]"))
    other = _one_of(rng, values, lambda other: other.is_floating and _broadcasts_into(other, value, part))
    change = rng.choice(WRITES)
    if "{1}" in change and other is None:
        return None
    operands = (value, other) if "{1}" in change and other else (value,)
    if rng.random() < 0.6:
        return Call(f"{{r}} = {{0}}.clone()\n{{r}}{part}{change}", operands)
    return Call(f"{{0}}{part}{change}\n{{r}} = {{0}}", operands, is_view=True)


def _broadcasts_into(other: Value, value: Value, part: str) -> bool:
    target = value.tensor[:1] if part == "[:1]" else value.tensor[..., ::2] if part == "[..., ::2]" else value.tensor
    if part == "[..., 0]":
        if value.shape[-1] == 0:
            return False
        target = value.tensor[..., 0]
    try:
        return torch.broadcast_shapes(tuple(target.shape), other.shape) == target.shape
    except RuntimeError:
        return False
