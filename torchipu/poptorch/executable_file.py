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

from torchipu.poptorch import stored_options, stored_values, tensor_file
from torchipu.poptorch._args_parser import Arguments
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch._logging import logger
from torchipu.poptorch.enums import ConnectionType
from torchipu.poptorch.session import TrainingSession
from torchipu.poptorch.stored_capture import capture_from_data, capture_to_data
from torchipu.poptorch.structure import with_tensors

KIND, VERSION = "torchipu.poptorch executable", "3.3.0"
LAYOUT = "2"
"""Of the description: raised where files of before cannot be read any more."""
DEFAULT_NAME = "model.poptorch"


def save(executor: Any, filename: str | os.PathLike[str], export_model: bool, save_rng_state: bool) -> None:
    """Write an executor; see `PoplarExecutor.save`."""
    path = Path(filename)
    if path.is_dir():
        path = path / DEFAULT_NAME
        logger.warning("%s is a directory: saving the model to %s", filename, path)
    assert not path.parent.exists() or path.parent.is_dir(), f"{path.parent} is not a directory"
    path.parent.mkdir(parents=True, exist_ok=True)
    session = executor._session()
    assert session.original is not None and executor._compiled_arguments is not None
    captured, arguments = session.original, executor._compiled_arguments
    capture, tensors = capture_to_data(captured)
    traced = session.traced
    members = [m if isinstance(m, int) else f"result/{n}" for n, m in enumerate(traced.members)]
    tensors |= {f"result/{n}": m for n, m in enumerate(traced.members) if not isinstance(m, int)}
    description: dict[str, Any] = {
        "training": executor._training, "has_model": export_model, "capture": capture,
        "options": stored_options.options_to_data(executor.options), "members": members,
        "template": stored_values.to_data(traced.template),
        "arguments": stored_values.to_data((arguments.positional, arguments.keyword, arguments.names)),
        "parameters": _signature_to_data(executor._parser.signature),
        "groups": {name: stored_values.to_data(group) for name, group in executor._groups.items()},
        "random": list(executor._random_state()) if save_rng_state else None,
        "loss_scale": session.loss_scale if isinstance(session, TrainingSession) else None,
    }
    module = executor._user_model if isinstance(executor._user_model, torch.nn.Module) else executor._model
    if executor._optimizer is not None:
        description["optimizer"], states = stored_values.optimiser_to_data(executor._optimizer, module)
        tensors |= states
    if export_model:
        description["aliases"] = _aliases(module)
        description["frozen"] = [name for name, p in module.named_parameters() if not p.requires_grad]
        tensors |= {f"parameter/{name}": p.detach() for name, p in module.named_parameters()}
        tensors |= {f"buffer/{name}": b.detach() for name, b in module.named_buffers()}
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
        tensors, texts = tensor_file.read(path)
    except OSError as error:
        raise ValueError(str(error)) from error
    if texts.get("kind") != KIND:
        raise ValueError("it is no executable")
    if texts.get("version") != VERSION:
        raise ValueError(
            f"PopTorch version mismatch: File has been created with version {texts.get('version')} and you are trying "
            f"to load it with version {VERSION}"
        )
    if texts.get("layout") != LAYOUT:
        raise ValueError("PopTorch version mismatch: it was written by another version of torchipu; export it anew")
    return tensors, json.loads(texts["description"])


def load_into(executor: Any, filename: str | os.PathLike[str]) -> None:
    """Give an executor the program of a file; see `PoplarExecutor.loadExecutable`.

    Raises:
        Error: The file is not valid.
    """
    try:
        tensors, description = read(filename)
    except ValueError as error:
        raise createPoptorchError(f"Invalid file {os.fspath(filename)}: {error}") from error
    if description["training"] != executor._training:
        raise createPoptorchError(f"Invalid file {os.fspath(filename)}: it was written by another kind of wrapper")
    adopt(executor, tensors, description)
    if executor.options.connection_type != ConnectionType.Never:
        executor._attach()


def adopt(executor: Any, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any]) -> None:
    """Compile an executor for the graph of a file.

    Args:
        executor: A `PoplarExecutor`.
        tensors: Of the file.
        description: Of the file.
    """
    positional, keyword, names = stored_values.from_data(description["arguments"])
    arguments = Arguments(positional, keyword, names)
    # The capture is given: of the inputs only sizes and types matter.
    empty = [torch.zeros(t.shape, dtype=t.dtype) for t in arguments.tensors()]
    captured = capture_from_data(description["capture"], tensors)
    executor._groups = {name: stored_values.from_data(group) for name, group in description["groups"].items()}
    executor._compile(arguments.with_tensors(empty), captured)
    traced = executor._session().traced
    traced.members = [tensors[m] if isinstance(m, str) else m for m in description["members"]]
    template = stored_values.from_data(description["template"])
    traced.template = with_tensors(template, iter([torch.empty(0)] * len(traced.members)))


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


def _signature_to_data(signature: inspect.Signature) -> list[list[Any]]:
    found = []
    for parameter in signature.parameters.values():
        default = parameter.default
        known = default is not inspect.Parameter.empty and not isinstance(default, torch.Tensor)
        found.append([parameter.name, parameter.kind.name, known, stored_values.to_data(default) if known else None])
    return found


def _signature_from_data(data: list[list[Any]]) -> inspect.Signature:
    return inspect.Signature([
        inspect.Parameter(
            name, inspect._ParameterKind[kind],
            default=stored_values.from_data(default) if known else inspect.Parameter.empty,
        )
        for name, kind, known, default in data
    ])
