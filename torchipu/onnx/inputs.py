"""What a model of a file is called with from a command line: arrays of files, and random numbers for the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchipu.errors import OnnxError
from torchipu.onnx.conversion import as_module
from torchipu.onnx.files import first_line, inputs_of, onnx_package, read_model, shape_of, sized


def model_and_inputs(
    path: str | os.PathLike[str], files: Mapping[str, str], sizes: Mapping[str, int],
) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
    """Return a model of a file as a module, its inputs, and the names of its outputs.

    Args:
        path: Of the ``.onnx`` file.
        files: By input, a ``.npy`` file. The others are random: normal numbers, or whole ones of 0 and 1, which any
            table has a row for; the same in each run.
        sizes: By the names of sizes that the file leaves open.

    Raises:
        OnnxError: An array does not go with its input, or a size is left open.
    """
    model = read_model(path)
    values = inputs_of(model)
    names = [value.name for value in values]
    for name in files:
        if name not in names:
            raise OnnxError(f"the model has no input {name!r}: it has {', '.join(names)}", file=str(path))
    arrays = {name: _array(file) for name, file in files.items()}
    bound = dict(sizes)
    for value in values:
        if value.name in arrays:
            _bind(value, arrays[value.name], bound)
    shapes = sized(model, bound)
    for value in values:
        if value.name in arrays:  # sizes without a name of their own are those of the array
            shapes[value.name] = arrays[value.name].shape
    generator = np.random.default_rng(0)
    inputs = tuple(
        torch.from_numpy(arrays[value.name] if value.name in arrays else _drawn(value, shapes[value.name], generator))
        for value in values
    )
    return as_module(model, shapes), inputs, tuple(output.name for output in model.graph.output)


def _array(file: str) -> np.ndarray[Any, Any]:
    if not Path(file).is_file():
        raise FileNotFoundError(f"there is no file {file}")
    try:
        found = np.load(file, allow_pickle=False)
    except Exception as error:  # of several kinds, by how it is damaged
        raise OnnxError(f"{file} is no array of numbers: {first_line(error)}", file=file) from error
    if not isinstance(found, np.ndarray):
        raise OnnxError(f"{file} holds several arrays: give one of them as a .npy file", file=file)
    return found


def _bind(value: Any, array: np.ndarray[Any, Any], sizes: dict[str, int]) -> None:
    """Check an array against its input, and enter the sizes that it tells."""
    shape, expected = shape_of(value), _dtype(value)
    wrong = len(shape) != array.ndim
    for size, found in zip(shape, array.shape, strict=False):
        if isinstance(size, str) and size != "?":
            size = sizes.setdefault(size, found)
        wrong = wrong or (isinstance(size, int) and size != found)
    if wrong:
        raise OnnxError(f"input {value.name} has the shape {_text(shape)}, and its file has {list(array.shape)}")
    if array.dtype != expected:
        raise OnnxError(
            f"input {value.name} has the type {expected}, and its file has {array.dtype}",
            remedy=f"convert it: array.astype({str(expected)!r})",
        )


def _drawn(value: Any, shape: tuple[int | str, ...], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    left = [size for size in shape if isinstance(size, str)]
    if left:
        named = f"--size {left[0]}=NUMBER or " if left[0] != "?" else ""
        raise OnnxError(
            f"input {value.name} has the shape {_text(shape)}, which leaves a size open",
            remedy=f"add {named}--input {value.name}=FILE.npy",
        )
    dtype = _dtype(value)
    if np.issubdtype(dtype, np.floating):
        return generator.standard_normal(shape).astype(dtype)  # type: ignore[arg-type]
    return generator.integers(0, 2, shape).astype(dtype)  # type: ignore[arg-type]


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = np.dtype(onnx_package().helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    if dtype.kind not in "biuf":
        raise OnnxError(f"input {value.name} has the type {dtype}, of which no array can be made here")
    return dtype


def _text(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
