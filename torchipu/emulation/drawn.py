"""What random ops draw, and how halves are rounded stochastically: in numpy, from what is written down of both.

Philox as Salmon, Moraes, Dror and Shaw publish it ("Parallel random numbers: as easy as 1, 2, 3", SC 2011), numbered
as ``_kernels/table/random.py`` says; the hash of rounding as ``_kernels/rounding_body.h`` says. Kernels are held to
this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np
import torch

from torchipu._kernels.table.random import RANDOM_BITS, RANDOM_ITEM
from torchipu.fp8.codes import quantise_by
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.random_streams import ROUNDS_TO_NEAREST, Words

ROUNDS = 10
FACTORS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
STEPS = 0x9E3779B9, 0xBB67AE85
LOW = np.uint64(0xFFFFFFFF)
ROUNDING_STEP = np.uint64(0xB5297A4D)
"""Between the places of neighbouring elements that are rounded."""
LAST_STREAM = 0xFFFFFFFF
"""Which no result has: the key that all streams of rounding share is its first word."""
HALF_BITS, LEAST_EXPONENT, LARGEST_HALF = 11, -14, 65504.0
"""Of a half: significant bits, the exponent of the least normal one, and the largest."""
HALF_UNIFORM_BITS = 11
"""Of a uniform number in half: with more of them some would become 1."""

Array = np.ndarray


# ---------------------------------------------------------------------- bits
def _philox(counters: Sequence[Array], key: tuple[int, int]) -> list[Array]:
    """Return the four words of each block, as 64-bit integers below 2^32."""
    first, second, third, fourth = (counter.astype(np.uint64) & LOW for counter in counters)
    for number in range(ROUNDS):
        low, high = (np.uint64((half + number * step) % 2**32) for half, step in zip(key, STEPS, strict=True))
        one, other = first * FACTORS[0], third * FACTORS[1]
        first, second, third, fourth = (
            (other >> np.uint64(32)) ^ second ^ low, other & LOW, (one >> np.uint64(32)) ^ fourth ^ high, one & LOW,
        )
    return [first, second, third, fourth]


def _blocks(words: Words, numbers: Array) -> list[Array]:
    """Return the blocks of some numbers of a stream."""
    rest = (np.full_like(numbers, one & 0xFFFFFFFF) for one in (words.micro_batch, words.stream, words.replica))
    return _philox([numbers, *rest], (words.seed & 0xFFFFFFFF, words.seed >> 32))


def words_of(words: Words, elements: Array) -> Array:
    """Return a word of 32 bits for each element.

    Args:
        words: What the stream begins from.
        elements: Numbers of elements, of any shape.
    """
    item, inside = np.divmod(elements.astype(np.int64), RANDOM_ITEM)
    block = 16 * item + inside % 16
    made = np.stack(_blocks(words, block))
    return np.take_along_axis(made, (inside // 16)[None], 0)[0]


def _rounding_bits(words: Words, count: int) -> Array:
    """Return 16 bits for each of the first elements of a result."""
    shared, own = (_blocks(each, np.zeros(1, np.int64)) for each in (words._replace(stream=LAST_STREAM), words))
    first, second = shared[0], own[0]
    place = np.arange(count, dtype=np.uint64) * ROUNDING_STEP + first & LOW
    word = (place ^ place >> np.uint64(12)) * (place ^ second) & LOW
    return np.asarray(word >> np.uint64(16))


# ---------------------------------------------------------------------- rounding
def rounded_to_half(values: Array, words: Words | None, overflow: str) -> Array:
    """Return values that a half holds, as float32.

    Args:
        values: Float32.
        words: What the stream of random bits begins from; None to round to nearest.
        overflow: What becomes of values beyond 65504: ``"infinity"``, ``"nan"`` or ``"saturate"``.
    """
    if words is None or words.replica & ROUNDS_TO_NEAREST:
        with np.errstate(over="ignore", invalid="ignore"):
            made = values.astype(np.float16).astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):
            exact = values.astype(np.float64)
        finite = np.where(np.isfinite(exact), exact, 0)
        exponent = np.maximum(np.frexp(finite)[1] - 1, LEAST_EXPONENT)
        unit = np.ldexp(1.0, exponent - (HALF_BITS - 1))
        raised = np.abs(finite) / unit + _rounding_bits(words, exact.size).reshape(exact.shape) * 2.0**-16
        made = np.where(np.isfinite(exact), np.copysign(np.floor(raised) * unit, exact), exact)
    is_beyond = np.abs(made) > LARGEST_HALF
    stand_in = {"infinity": np.inf, "nan": np.nan, "saturate": LARGEST_HALF}[overflow]
    return np.where(is_beyond, np.copysign(stand_in, made), made).astype(np.float32)


# ---------------------------------------------------------------------- ops
def drawn(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    """Return what a random op gives, floats in the type of its floating operands or in float64.

    Args:
        op: The op.
        inputs: Its operands.
        words: What its stream begins from.
    """
    return _BY_KIND[_kind(op)](op, inputs, words)


def is_known(op: Op) -> bool:
    """Whether this says what an op draws."""
    return _kind(op) in _BY_KIND


def _kind(op: Op) -> str:
    return op.target.split(".")[1].removesuffix("_like")


def _number(op: Op, name: str, default: float) -> np.float64:
    """Return a number as the kernels have it, which is a float32."""
    return np.float64(np.float32(op.number(name, default)))


def _uniform(words: Array, bits: int = RANDOM_BITS) -> Array:
    """Return numbers in [0, 1) of the uppermost bits of words."""
    kept = words >> np.uint64(32 - bits)
    return kept.astype(np.float64) * 2.0**-bits


def _positive(words: Array) -> Array:
    """Return numbers in (0, 1], as float32 holds them."""
    return (words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)).astype(np.float64)


def _all_words(op: Op, words: Words) -> Array:
    shape = op.outputs[0].shape
    return words_of(words, np.arange(prod(shape), dtype=np.int64).reshape(shape))


def _dropout(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    (value,) = inputs[:1]
    p = float(op.number("p", 0))
    if op.attrs.get("train") is False or p == 0:
        return [value, np.ones(value.shape, bool)][: len(op.outputs)]
    kept = _uniform(_all_words(op, words)) < np.float32(1 - p)
    scale = value.dtype.type(0 if p >= 1 else 1 / (1 - p))
    return [np.where(kept, value * scale, value * 0), kept][: len(op.outputs)]


def _bernoulli(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    chance = np.float32(op.number("p", 0)) if "p" in op.attrs else inputs[0].astype(np.float32)
    return [(_uniform(_all_words(op, words)) < chance).astype(np.float64)]


def _between(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    low = float(op.number("from", 0))
    span = np.float64(np.float32(float(op.number("to", 1.0)) - low))
    bits = HALF_UNIFORM_BITS if op.outputs[0].dtype is DType.HALF else RANDOM_BITS
    return [_uniform(_all_words(op, words), bits) * span + _number(op, "from", 0)]


def _normal(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    """By the transform of Box and Muller: elements 16 apart are a pair."""
    count = op.outputs[0].num_elements
    number = np.arange(count, dtype=np.int64)
    of_radius, of_angle = (words_of(words, number // 32 * 32 + number % 16 + 16 * k) for k in (0, 1))
    radius = np.sqrt(-2 * np.log(_positive(of_radius))) * _number(op, "std", 1)
    angle = _uniform(of_angle) * np.float64(np.float32(2 * np.pi))
    turned = np.where(number % 32 < 16, np.cos(angle), np.sin(angle))
    return [(radius * turned + _number(op, "mean", 0)).reshape(op.outputs[0].shape)]


def _exponential(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    scale = np.float64(np.float32(-1 / float(op.number("lambd", 1.0))))
    return [np.log(_positive(_all_words(op, words))) * scale]


def _integers(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    low, high = op.integer("low", 0), op.integer("high")
    product = _all_words(op, words) * np.uint64(high - low)
    return [(low + (product >> np.uint64(32)).astype(np.int64)).astype(np.int64)]


def _permutation(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    """By the shuffle of Fisher and Yates."""
    made = np.zeros(op.outputs[0].shape, np.int64)
    for place, word in enumerate(_all_words(op, words).tolist()):
        partner = word * (place + 1) >> 32
        made[place] = made[partner]
        made[partner] = place
    return [made]


def _choice(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    """With replacement by running sums; without, those that wait least, each an exponential time over its weight."""
    weights = inputs[0].astype(np.float32).astype(np.float64)
    samples, choices = op.outputs[0].shape[-1], weights.shape[-1]
    apart = -(-max(choices, samples) // RANDOM_ITEM) * RANDOM_ITEM
    made = []
    for row, given in enumerate(weights.reshape(-1, choices)):
        count = samples if op.flag("replacement") else choices
        even = (words_of(words, row * apart + np.arange(count)).astype(np.float64) + 0.5) * 2.0**-32
        if op.flag("replacement"):
            sums = np.cumsum(given)
            made.append(np.searchsorted(sums, even * sums[-1], side="right"))
        else:
            with np.errstate(divide="ignore"):
                waits = np.where(given > 0, -np.log(even) / given, np.inf)
            made.append(np.argsort(waits, kind="stable")[:samples])
    return [np.stack(made).reshape(op.outputs[0].shape).astype(np.int64)]


def _bytes(op: Op, inputs: Sequence[Array], words: Words) -> list[Array]:
    """Round to floats of 8 bits by the bits that round halves."""
    value = torch.from_numpy(inputs[0].astype(np.float32))
    random = torch.from_numpy(_rounding_bits(words, value.numel()).reshape(value.shape) * 2.0**-16)
    made = quantise_by(value, op.text("format"), op.integer("scale"), op.flag("saturates"), random)
    return [made.numpy()]


_BY_KIND: dict[str, Callable[[Op, Sequence[Array], Words], list[Array]]] = {
    "native_dropout": _dropout, "dropout": _dropout, "bernoulli": _bernoulli, "rand": _between, "uniform": _between,
    "randn": _normal, "normal_functional": _normal, "normal": _normal, "exponential": _exponential,
    "randint": _integers, "randperm": _permutation, "multinomial": _choice,
    "fp8_quantise_stochastically": _bytes,
}
