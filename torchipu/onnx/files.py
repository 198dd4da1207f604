"""Reads ONNX files: what is damaged, incomplete or too large is told before anything is converted."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from torchipu.errors import CaptureError, OnnxError, UnsupportedOpError

EXTRA = 'pip install "torchipu[onnx]"'
STANDARD = ("", "ai.onnx")
"""Domains of the standard's own operators."""
LARGEST_FILE_BYTES = 2**31 - 1
"""What protobuf can hold in one message; larger models keep their weights in files beside it."""
LARGEST_FOLDED_BYTES = 2**26
"""Of a constant that is computed before a model runs: tables and masks are smaller, and hostile ones are not."""


def onnx_package() -> Any:
    """Return the package ``onnx``.

    Raises:
        ImportError: It is not installed, or what folds constants is not.
    """
    try:
        import onnx
        importlib.import_module("onnxscript.optimizer")
    except ImportError as error:
        raise ImportError(
            f"ONNX models need {error.name}, which is missing\n  do      {EXTRA}", name=error.name,
        ) from error
    return onnx


def read_model(path: str | os.PathLike[str]) -> Any:
    """Return the model of a file, with the weights that it keeps in others.

    Args:
        path: Of the ``.onnx`` file.

    Returns:
        An ``onnx.ModelProto`` that onnx's own checker accepts.

    Raises:
        FileNotFoundError: There is no such file.
        OnnxError: It is no ONNX model, or is damaged, or a file that it names is missing or lies elsewhere.
        UnsupportedOpError: It has operators under the standard's domain that its version of the standard has not.
    """
    onnx = onnx_package()
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no ONNX model {file}")
    size = file.stat().st_size
    if not 0 < size <= LARGEST_FILE_BYTES:
        raise OnnxError(
            f"{file} has {size:,} bytes, and an ONNX model has 1 to {LARGEST_FILE_BYTES:,}", file=str(file),
            remedy="save a large model with save_as_external_data=True",
        )
    try:
        model = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf's own errors have no common base
        raise OnnxError(f"{file} is no ONNX model, or is damaged: {first_line(error)}", file=str(file)) from error
    if not model.graph.node and not model.graph.output:
        raise OnnxError(f"{file} is no ONNX model, or is damaged: it has no graph", file=str(file))
    _refuse_unknown(model)
    try:
        onnx.checker.check_model(os.fspath(file))  # by the path: of the whole model, the files of its weights too
        onnx.load_external_data_for_model(model, os.fspath(file.parent))
    except Exception as error:  # the checker's, or of a file that is missing
        raise OnnxError(
            f"{file} is not valid: {first_line(error)}", file=str(file),
            remedy="files of weights lie in the folder of the model, under the names that it gives",
        ) from error
    return model


def _refuse_unknown(model: Any) -> None:
    """Name all operators that are none of the standard's at once, before the checker stops at the first."""
    schemas = onnx_package().defs
    versions = [each.version for each in model.opset_import if each.domain in STANDARD]
    own = {function.name for function in model.functions}
    names = {node.op_type for node in model.graph.node if node.domain in STANDARD} - own
    unknown = []
    for name in sorted(names) if versions else ():
        try:
            schemas.get_schema(name, min(versions[0], schemas.onnx_opset_version()), "")
        except schemas.SchemaError:
            unknown.append(name)
    if unknown:
        raise UnsupportedOpError(
            f"the model has operators that ONNX has not in version {versions[0]}: {', '.join(unknown)}",
            remedy="export the model without them, or give operators of one's own a domain of their own",
        )


def inputs_of(model: Any) -> list[Any]:
    """Return the ``ValueInfoProto`` of each input that is no weight."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in weights]


def shape_of(value: Any) -> tuple[int | str, ...]:
    """Return the shape of an input: numbers, and names of sizes that are not fixed (``?`` where they have none)."""
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "?"
        for dim in value.type.tensor_type.shape.dim
    )


def open_sizes(model: Any) -> Iterator[str]:
    """Yield the name of each size of an input that is not fixed, once."""
    yield from dict.fromkeys(size for value in inputs_of(model) for size in shape_of(value) if isinstance(size, str))


def with_shapes(model: Any, shapes: Mapping[str, tuple[int | str, ...]]) -> Any:
    """Return the model with these shapes of inputs, and everything computed that they and the weights decide.

    Args:
        model: An ``onnx.ModelProto``; it is changed.
        shapes: By input; those left out stay as they are.

    Raises:
        OnnxError: Shapes contradict one another.
    """
    for value in inputs_of(model):
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if isinstance(size, int):
                dim.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")  # it may tell what held before
    del model.graph.value_info[:]
    folded = _folded(model)
    # What is filled with one value is constant only now that its shape is, and more follows from that.
    return _folded(folded) if _fill_constants(folded.graph) else folded


def _folded(model: Any) -> Any:
    onnx = onnx_package()
    from onnxscript import optimizer

    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        _pad_dilated_convolutions(inferred.graph)
        return optimizer.optimize(
            inferred, input_size_limit=LARGEST_FOLDED_BYTES // 8, output_size_limit=LARGEST_FOLDED_BYTES // 8,
        )
    except Exception as error:  # whatever both make of the model's own contradictions
        raise OnnxError(f"the shapes of the model do not go together: {first_line(error)}") from error


def _pad_dilated_convolutions(graph: Any) -> None:
    """Write paddings of dilated convolutions out where ``auto_pad`` names them: onnxscript forgets dilations."""
    onnx = onnx_package()
    values = [*graph.input, *graph.value_info]
    sizes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type not in ("Conv", "ConvInteger"):
            continue
        given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        spatial = sizes.get(node.input[0], [])[2:]
        kernel = given.get("kernel_shape") or weights.get(node.input[1], [])[2:]
        dilations = given.get("dilations") or [1] * len(spatial)
        is_same = given.get("auto_pad", b"") in (b"SAME_UPPER", b"SAME_LOWER")
        if not is_same or set(dilations) <= {1} or not spatial or 0 in spatial or len(kernel) != len(spatial):
            continue
        strides = given.get("strides") or [1] * len(spatial)
        totals = [
            max(0, (-(-size // stride) - 1) * stride + (taps - 1) * dilation + 1 - size)
            for size, stride, taps, dilation in zip(spatial, strides, kernel, dilations, strict=True)
        ]
        less, more = [total // 2 for total in totals], [-(-total // 2) for total in totals]
        pads = [*less, *more] if given["auto_pad"] == b"SAME_UPPER" else [*more, *less]
        kept = [each for each in node.attribute if each.name not in ("auto_pad", "pads")]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("pads", pads)])


def _fill_constants(graph: Any) -> bool:
    """Turn each ConstantOfShape whose shape is constant into a weight; tell whether there was any."""
    onnx = onnx_package()
    weights = {tensor.name: tensor for tensor in graph.initializer}
    found = [node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in weights]
    for node in found:
        shape = onnx.numpy_helper.to_array(weights[node.input[0]]).tolist()
        value = next((onnx.numpy_helper.to_array(each.t) for each in node.attribute), np.zeros(1, np.float32))
        if math.prod(shape) * value.itemsize > LARGEST_FOLDED_BYTES:
            raise OnnxError(f"{node.output[0]} would be a constant of shape {shape}, larger than can be meant")
        filled = onnx.numpy_helper.from_array(np.full(shape, value.item(), value.dtype), node.output[0])
        graph.initializer.append(filled)
        graph.node.remove(node)
    return bool(found)


def sized(model: Any, sizes: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
    """Return the shape of each input with sizes in place of their names.

    Raises:
        CaptureError: A name is not one of the model's, or a size is not positive.
    """
    names = list(open_sizes(model))
    for name, size in sizes.items():
        if name not in names:
            known = f"it has {', '.join(names)}" if names else "all are fixed"
            raise CaptureError(f"the model has no size {name!r} to set: {known}")
        if size < 1:
            raise CaptureError(f"size {name} has to be from 1, got {size}")
    return {
        value.name: tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape_of(value))
        for value in inputs_of(model)
    }


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text that says something, or its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
