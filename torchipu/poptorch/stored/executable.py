"""Executors in files: the captured graph, weights and options; the device program is made anew when one is read.

A file holds no code. So `load` gives an executor whose module has the parameters and buffers under their names, but no
forward of its own: it runs on the device only.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchipu.poptorch._logging import logger
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.stored import values
from torchipu.stored import tensor_file

KIND, VERSION = "torchipu.poptorch executable", "3.3.0"
LAYOUT = "3"
"""Of the description: raised where files of before cannot be read any more."""
DEFAULT_NAME = "model.poptorch"


def path_to_write(filename: str | os.PathLike[str]) -> Path:
    """Return where a file is written, in a folder that is there.

    Args:
        filename: A folder receives ``model.poptorch``.

    Raises:
        AssertionError: What should be its folder is none.
    """
    path = Path(filename)
    if path.is_dir():
        path = path / DEFAULT_NAME
        logger.warning("%s is a directory: saving the model to %s", filename, path)
    if path.parent.exists() and not path.parent.is_dir():
        raise AssertionError(f"{path.parent} is not a directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, tensors: dict[str, torch.Tensor], description: Mapping[str, Any]) -> None:
    """Write what `read` returns."""
    texts = {"kind": KIND, "version": VERSION, "layout": LAYOUT, "description": json.dumps(description)}
    tensor_file.write(path, tensors, texts)


def read(filename: str | os.PathLike[str]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the tensors and the description of a file.

    Raises:
        ValueError: It is damaged, or was written by something else or another version.
    """
    path = Path(filename)
    if path.is_dir():
        path = path / DEFAULT_NAME
    try:
        texts = tensor_file.read_texts(path)
        _check_version(texts)
        tensors, texts = tensor_file.read(path)
    except OSError as error:
        raise ValueError(str(error)) from error
    return tensors, json.loads(texts["description"])


def _check_version(texts: Mapping[str, str]) -> None:
    """Raise ValueError unless a file can be read; what else it holds is not looked at before."""
    if texts.get("kind") != KIND:
        raise ValueError("it is no executable")
    if texts.get("version") != VERSION:
        raise ValueError(
            f"PopTorch version mismatch: File has been created with version {texts.get('version')} and you are trying "
            f"to load it with version {VERSION}"
        )
    if texts.get("layout") != LAYOUT:
        raise ValueError(
            f"PopTorch version mismatch: it has layout {texts.get('layout')} of torchipu's files, and this version "
            f"reads layout {LAYOUT}: export it anew"
        )


def module_to_data(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return what `StoredModel` is made of: a description, and tensors by name."""
    description = {
        "aliases": _aliases(module),
        "frozen": [name for name, p in module.named_parameters() if not p.requires_grad],
    }
    tensors = {f"parameter/{name}": p.detach() for name, p in module.named_parameters()}
    tensors |= {f"buffer/{name}": b.detach() for name, b in module.named_buffers()}
    return description, tensors


class StoredModel(torch.nn.Module):
    """The parameters and buffers of a model that was read from a file.

    Args:
        tensors: Of the file.
        description: Of the file.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any]) -> None:
        super().__init__()
        frozen = set(description["frozen"])
        for name, tensor in tensors.items():
            kind, _, path = name.partition("/")
            if kind == "parameter":
                trainable = path not in frozen and tensor.is_floating_point()
                self._place(path).register_parameter(
                    path.rpartition(".")[2], torch.nn.Parameter(tensor, requires_grad=trainable)
                )
            elif kind == "buffer":
                self._place(path).register_buffer(path.rpartition(".")[2], tensor)
        for alias, path in description["aliases"].items():
            name = path.rpartition(".")[2]
            holder = self.get_submodule(path.rpartition(".")[0])
            if name in holder._parameters:
                self._place(alias).register_parameter(alias.rpartition(".")[2], holder._parameters[name])
            else:
                self._place(alias).register_buffer(alias.rpartition(".")[2], holder._buffers[name])

        def forward(*args: Any, **kwargs: Any) -> Any:
            raise createPoptorchError("a model read from an executable file has no code: it runs on the device only")

        forward.__signature__ = _signature_from_data(description["parameters"])  # type: ignore[attr-defined]
        object.__setattr__(self, "forward", forward)

    def _place(self, path: str) -> torch.nn.Module:
        """Return the module that holds a tensor, made if need be."""
        member: torch.nn.Module = self
        for name in path.split(".")[:-1]:
            if name not in member._modules:
                member.add_module(name, torch.nn.Module())
            member = member._modules[name]  # type: ignore[assignment]
        return member


# ---------------------------------------------------------------------- parts
def _aliases(module: torch.nn.Module) -> dict[str, str]:
    """Return further names of parameters and buffers that have several, with the first name of each."""
    found = {}
    for members in (module.named_parameters, module.named_buffers):
        first: dict[int, str] = {}
        for name, tensor in members(remove_duplicate=False):
            if first.setdefault(id(tensor), name) != name:
                found[name] = first[id(tensor)]
    return found


def signature_to_data(signature: inspect.Signature) -> list[list[Any]]:
    """Return the arguments of a model's ``forward``."""
    found = []
    for parameter in signature.parameters.values():
        default = parameter.default
        known = default is not inspect.Parameter.empty and not isinstance(default, torch.Tensor)
        found.append([parameter.name, parameter.kind.name, known, values.to_data(default) if known else None])
    return found


def _signature_from_data(data: list[list[Any]]) -> inspect.Signature:
    return inspect.Signature([
        inspect.Parameter(
            name, inspect._ParameterKind[kind],
            default=values.from_data(default) if known else inspect.Parameter.empty,
        )
        for name, kind, known, default in data
    ])
