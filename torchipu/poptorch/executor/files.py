"""How the program of an executor is written to a file and taken from one."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from typing import Any

import torch

from torchipu.capture.captured import Captured
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.arguments.structure import with_tensors
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.executor.compilation import Compilation
from torchipu.poptorch.executor.random_numbers import RandomNumbers
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.executor.training_session import TrainingSession
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.stored import executable, values
from torchipu.poptorch.stored.options import options_to_data
from torchipu.stored.captures import capture_from_data, capture_to_data


class Files:
    """Writes and reads the program of an executor.

    Args:
        state: The executor's.
        compilation: Compiles what was read.
        random: Whose state goes with the program.
    """

    def __init__(self, state: State, compilation: Compilation, random: RandomNumbers) -> None:
        self._state, self._compilation, self._random = state, compilation, random

    def save(self, filename: str | os.PathLike[str], export_model: bool, save_rng_state: bool) -> None:
        """Write the program; what the device has trained is on the host already.

        Args:
            filename: As of `PoplarExecutor.save`, like the others.
            export_model: Likewise.
            save_rng_state: Likewise.
        """
        path = executable.path_to_write(filename)
        state = self._state
        session, arguments = state.session, state.compiled_arguments
        assert session.original is not None and arguments is not None
        capture, tensors = capture_to_data(session.original)
        traced = session.traced
        members = [m if isinstance(m, int) else f"result/{n}" for n, m in enumerate(traced.members)]
        tensors |= {f"result/{n}": m for n, m in enumerate(traced.members) if not isinstance(m, int)}
        description: dict[str, Any] = {
            "training": state.is_training, "has_model": export_model, "capture": capture,
            "options": options_to_data(state.options), "members": members,
            "template": values.to_data(traced.template),
            "arguments": values.to_data((arguments.positional, arguments.keyword, arguments.names)),
            "parameters": executable.signature_to_data(state.parser.signature),
            "groups": {name: values.to_data(group) for name, group in state.groups.items()},
            "random": list(self._random.read()) if save_rng_state else None,
            "loss_scale": session.loss_scale if isinstance(session, TrainingSession) else None,
        }
        if state.optimizer is not None:
            description["optimizer"], states = values.optimiser_to_data(state.optimizer, state.holder)
            tensors |= states
        if export_model:
            described, held = executable.module_to_data(state.holder)
            description |= described
            tensors |= held
        executable.write(path, tensors, description)

    def load(self, filename: str | os.PathLike[str], executor: instrumentation.Owner) -> None:
        """Take a program from a file.

        Args:
            filename: Where it is.
            executor: As of `Compilation.make`.

        Raises:
            Error: The file is not valid.
        """
        try:
            tensors, description = executable.read(filename)
        except ValueError as error:
            raise createPoptorchError(f"Invalid file {os.fspath(filename)}: {error}") from error
        if description["training"] != self._state.is_training:
            raise createPoptorchError(f"Invalid file {os.fspath(filename)}: it was written by another kind of wrapper")
        self.adopt(tensors, description, executor)

    def adopt(
        self, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any], executor: instrumentation.Owner,
    ) -> None:
        """Compile for the graph of a file.

        Args:
            tensors: Of the file.
            description: Of the file.
            executor: As of `Compilation.make`.
        """
        positional, keyword, names = values.from_data(description["arguments"])
        arguments = Arguments(positional, keyword, names)
        # The capture is given: of the inputs only sizes and types matter.
        empty = [torch.zeros(t.shape, dtype=t.dtype) for t in arguments.tensors()]
        captured = capture_from_data(description["capture"], tensors)
        _check_weights(captured, self._state.holder, description["groups"])
        self._state.groups = {name: values.from_data(group) for name, group in description["groups"].items()}
        self._compilation.make(arguments.with_tensors(empty), executor, captured)
        traced = self._state.session.traced
        traced.members = [tensors[m] if isinstance(m, str) else m for m in description["members"]]
        template = values.from_data(description["template"])
        traced.template = with_tensors(template, iter([torch.empty(0)] * len(traced.members)))


def _check_weights(captured: Captured, holder: torch.nn.Module, groups: Container[str]) -> None:
    """Raise Error unless a model has the parameters and buffers of a program, in their sizes.

    Args:
        captured: The program.
        holder: The model.
        groups: Parameters that differ between replicas: the host has one row for each group, and the program one row.
    """
    held = {**dict(holder.named_parameters()), **dict(holder.named_buffers())}
    for name, tensor in {**captured.parameters, **captured.buffers}.items():
        if name not in held:
            raise createPoptorchError(f"Invalid file: its program has {name}, {list(tensor.shape)}, and the model not")
        if name not in groups and tuple(held[name].shape) != tensor.shape:
            raise createPoptorchError(
                f"Invalid file: its program has {name} of {list(tensor.shape)}, and the model of "
                f"{list(held[name].shape)}"
            )
