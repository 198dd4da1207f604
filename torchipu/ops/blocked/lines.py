"""Convolutions of one dimension, their gradients, and what stands beside them, as ops on images of one row."""

from __future__ import annotations

from collections.abc import Mapping

from torchipu.ir.graph import Op
from torchipu.ops.blocked.norm import GROUP_NORM, NORM
from torchipu.ops.convolution import present_results
from torchipu.ops.fusions.conv_epilogue import CONVOLUTION
from torchipu.ops.fusions.conv_gradient_epilogue import BACKWARD
from torchipu.optable.lines import AsImages, Lying, are_lines, dim_of_images, register_lines

WINDOW = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
"""Arguments of a convolution, and what they are along the one row."""


def _window_of_images(op: Op) -> Mapping[str, object]:
    return {name: [along, *op.integers(name)] for name, along in WINDOW.items()}


def _convolution(op: Op) -> AsImages | None:
    if not are_lines(op.needed("input")) or len(op.needed("weight").shape) != 3:
        return None
    bias = [] if op.operand("bias") is None else [Lying.AS_IT_IS]
    return AsImages((Lying.LINES, Lying.RAISED, *bias), (Lying.LINES,), _window_of_images(op))


def _gradients(op: Op) -> AsImages | None:
    if not are_lines(op.needed("input")) or len(op.needed("weight").shape) != 3:
        return None
    each = (Lying.LINES, Lying.RAISED, Lying.AS_IT_IS)
    results = [lying for lying, is_present in zip(each, present_results(op), strict=True) if is_present]
    return AsImages((Lying.LINES, Lying.LINES, Lying.RAISED), results, _window_of_images(op))


register_lines(CONVOLUTION, _convolution, is_product=True)
register_lines(BACKWARD, _gradients, is_product=True)


def _normalisation(op: Op) -> AsImages | None:
    """Return a normalisation, or its gradients: lines are read and made, all else is of channels."""
    if not are_lines(op.inputs[0]):
        return None
    lines = op.inputs[0].shape
    inputs, outputs = (
        [Lying.LINES if tensor.shape == lines else Lying.AS_IT_IS for tensor in tensors]
        for tensors in (op.inputs, op.outputs)
    )
    return AsImages(inputs, outputs, {})


for _target in (
    NORM, GROUP_NORM, "aten._native_batch_norm_legit_functional.default", "aten.native_batch_norm_backward.default",
    "aten.native_group_norm_backward.default",
):
    register_lines(_target, _normalisation)


def _along_a_dimension(op: Op) -> AsImages | None:
    """Return an op that takes pieces of lines along a dimension, or puts them together."""
    if not all(are_lines(tensor) for tensor in (*op.inputs, *op.outputs)):
        return None
    return AsImages(
        [Lying.LINES] * len(op.inputs), [Lying.LINES] * len(op.outputs), {"dim": dim_of_images(op.integer("dim", 0))}
    )


register_lines("aten.cat.default", _along_a_dimension)
register_lines("aten.slice.Tensor", _along_a_dimension)


def _mean(op: Op) -> AsImages | None:
    """Return the mean of each channel of lines, which becomes one of planes."""
    x = op.needed("self")
    dims = op.integers("dim", ())
    if not are_lines(x) or [dim % 3 for dim in dims] != [2]:
        return None
    kept = Lying.LINES if op.flag("keepdim") else Lying.AS_IT_IS
    return AsImages((Lying.LINES,), (kept,), {"dim": [2, 3]})


register_lines("aten.mean.dim", _mean)


def _padding(op: Op) -> AsImages | None:
    given = op.integers("pad")
    if not are_lines(op.needed("self")) or len(given) != 2:
        return None
    return AsImages((Lying.LINES,), (Lying.LINES,), {})


register_lines("aten.constant_pad_nd.default", _padding)
