"""Ops of a program by eager PyTorch, in float64 or in their own types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from torchipu.device.machine import Draw
from torchipu.emulation.drawn import drawn, rounded_to_half
from torchipu.emulation.drawn import is_known as can_draw
from torchipu.emulation.own_ops import OWN
from torchipu.host.emit.vectors import has_bfloat_products
from torchipu.host.generic import call_aten, overload
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.control import COND, REPEAT, WHILE
from torchipu.optable.marks import BFLOATS
from torchipu.optable.random_streams import RANDOM_STREAM, ROUNDING_STREAM, draws, rounding_stream

HALF_UNIT = np.float32(2.0**-11)
"""Of a value, the most by which rounding it to half moves it."""
FLOATS = (DType.HALF, DType.FLOAT)
OF_BYTES = frozenset(f"torchipu.fp8_{name}.default" for name in ("matmul", "convolution", "convolution_backward"))
"""Products of floats of 8 bits, whose partials are half."""


def evaluate(op: Op, inputs: Sequence[np.ndarray], draw: Draw | None = None, /) -> list[np.ndarray]:
    """Return the results of an op on values in float64; integers and bools are as they are.

    Args:
        op: The op.
        inputs: Its operands.
        draw: Gives what streams of random bits begin from; nothing is rounded.
    """
    return _computed(op, inputs, torch.float64, draw)


def evaluate_as_typed(op: Op, inputs: Sequence[np.ndarray], draw: Draw | None = None, /) -> list[np.ndarray]:
    """Return the results of an op in float32, rounded to the types that the program gives them, as float32.

    Where partials are half, results are off by as much as rounding each partial once may bring about. What the host
    multiplies as bfloat16 is rounded to that.

    Args:
        op: The op.
        inputs: Its operands.
        draw: Gives what streams of random bits begin from.
    """
    narrow = [value.astype(np.float32) if value.dtype.kind == "f" else value for value in inputs]
    if op.attrs.get(BFLOATS) and has_bfloat_products():
        narrow = [torch.from_numpy(value).bfloat16().float().numpy() for value in narrow]
    results = _computed(op, narrow, torch.float32, draw)
    if op.attrs.get("partials") == "half" or op.target in OF_BYTES:
        sizes = _computed(op, [_size(value) for value in narrow], torch.float32, draw)
        rng = np.random.default_rng(len(op.outputs[0].name))
        unit = HALF_UNIT * np.float32(2 if ROUNDING_STREAM in op.attrs else 1)
        results = [
            value + unit * size * rng.uniform(-1, 1, value.shape).astype(np.float32)
            for value, size in zip(results, sizes, strict=True)
        ]
    return [_as(op, tensor, result, draw) for tensor, result in zip(op.outputs, results, strict=True)]


def _as(op: Op, tensor: Tensor, result: np.ndarray, draw: Draw | None) -> np.ndarray:
    """Return a result in the type that the program gives it, as float32 where it is floating."""
    if result.dtype.kind != "f":
        return result
    if tensor.dtype is not DType.HALF:
        return result.astype(np.float32)
    stream = rounding_stream(op, tensor)
    words = None if stream is None or draw is None else draw(stream)
    return rounded_to_half(result, words, op.text("half_overflow", "infinity"))


def _size(value: np.ndarray) -> np.ndarray:
    """Return magnitudes; the uppermost bit of a float of 8 bits is its sign."""
    return value & np.uint8(0x7F) if value.dtype == np.uint8 else np.abs(value)


BY_THE_PROGRAM = frozenset({"ipu.all_reduce.default", COND, WHILE, REPEAT})
"""What the device program does with collectives and control flow: no vertex computes it."""


def is_known(op: Op) -> bool:
    """Whether there is anything to compute an op with."""
    if op.target in OWN or op.target in BY_THE_PROGRAM:
        return True
    if draws(op):
        return can_draw(op)
    try:
        overload(op.target)
    except AttributeError:
        return False
    return True


def _computed(
    op: Op, inputs: Sequence[np.ndarray], floating: torch.dtype, draw: Draw | None,
) -> list[np.ndarray]:
    if draws(op):
        assert draw is not None
        return drawn(op, inputs, draw(op.integer(RANDOM_STREAM)))
    tensors = [torch.from_numpy(np.array(value, order="C")) for value in inputs]
    return [result.detach().numpy() for result in computed(op, tensors, floating)]


def computed(op: Op, tensors: list[torch.Tensor], floating: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Return the results of an op on tensors, whose floats are all of one type; see ``evaluate``."""
    own = OWN.get(op.target)
    if own is not None:
        return own(op, tensors)
    if any(value in FLOATS for value in op.attrs.values()):
        op = replace(op, attrs={name: floating if value in FLOATS else value for name, value in op.attrs.items()})
    return call_aten(op, tensors)
