"""``torchipu run model.onnx``, and ``estimate`` and ``report`` of one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from torchipu.cli.estimate import swept
from torchipu.errors import OptionsError
from torchipu.estimation.door import estimate, sweep
from torchipu.explanation import Explanation, listening
from torchipu.onnx.inputs import model_and_inputs
from torchipu.options import Options
from torchipu.report import format_full
from torchipu.step import InferenceStep

ENDING = ".onnx"


def run_model(flags: argparse.Namespace) -> None:
    """Run a model once and print its outputs and what the machine would have done.

    Args:
        flags: Of the command line: ``model``, ``input``, ``size``, ``target`` and ``output``.
    """
    model, inputs, names = _loaded(flags.model, flags)
    step = InferenceStep(model, Options(target=flags.target) if flags.target else None)
    results = step(*inputs)
    for name, value in zip(names, results if isinstance(results, (tuple, list)) else (results,), strict=True):
        print(f"{name}: {str(value.dtype).removeprefix('torch.')} {list(value.shape)}{_range(value)}")
        if flags.output:
            Path(flags.output).mkdir(parents=True, exist_ok=True)
            np.save(Path(flags.output) / f"{name.replace('/', '_')}.npy", value.numpy())
    print(format_full(step.profile))


def estimate_model(flags: argparse.Namespace) -> None:
    """Print what a model would take: a table where an option has several values."""
    model, inputs, _ = _loaded(flags.script, flags)
    over = swept(flags)
    if all(len(values) == 1 for values in over.values()) and "micro_batch" not in over:
        print(estimate(model, inputs, Options.from_mapping({name: value for name, (value,) in over.items()})))
        return
    table = sweep(model, inputs, over)
    print(table)
    if flags.csv is not None:
        table.write_csv(Path(flags.csv))


def explain_model(path: str, flags: argparse.Namespace) -> Explanation:
    """Run a model once, and return what became of it."""
    model, inputs, _ = _loaded(path, flags)
    with listening(Explanation(path)) as explanation:
        InferenceStep(model)(*inputs)
    return explanation


def _loaded(path: str, flags: argparse.Namespace) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]:
    sizes = {}
    for name, text in _pairs("size", flags.size).items():
        if not text.isdecimal():
            raise OptionsError(f"--size expects name=number, got {name}={text}", option="size", value=text)
        sizes[name] = int(text)
    model, inputs, names = model_and_inputs(path, _pairs("input", flags.input), sizes)
    return model, inputs, names


def _pairs(flag: str, texts: list[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals:
            raise OptionsError(f"--{flag} expects name=value, got {text!r}", option=flag, value=text)
        pairs[name] = value
    return pairs


def _range(value: torch.Tensor) -> Any:
    return f", from {value.min().item():.6g} to {value.max().item():.6g}" if value.numel() else ""
