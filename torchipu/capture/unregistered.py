"""Tensors that a captured module holds and that are neither parameters nor buffers: constants of the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import GraphModule, Interpreter

from torchipu.capture.fx_source import line_in
from torchipu.errors import CaptureError


class WithConstants(Interpreter):
    """Runs a graph of Dynamo's so that what is computed of constants alone may be written into, as anything may.

    AOT autograd turns writes into values where it knows the tensor; a constant it takes as it lies, and does not know
    what is computed of constants alone either.

    Args:
        module: The graph.
        names: Name of each plain attribute of the model by its id, for messages.
    """

    def __init__(self, module: GraphModule, names: Mapping[int, str]) -> None:
        super().__init__(module)
        self._names = names
        self._twins: dict[str, tuple[torch.Tensor, FunctionalTensor]] = {}

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what stands for an argument: Dynamo makes arguments of attributes and of tensors found elsewhere."""
        return self._known(target, super().placeholder(target, args, kwargs))

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what stands for an attribute of the graph."""
        return self._known(target, super().get_attr(target, args, kwargs))

    def _known(self, target: str, value: Any) -> Any:
        """Return what AOT autograd knows in place of a constant, and anything else as it lies."""
        is_traced = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None
        if not is_traced or type(value) is not torch.Tensor:
            return value
        if target not in self._twins:
            with torch.no_grad():
                twin = torch.ops.aten.alias.default(value)
            if not isinstance(twin, FakeTensor):
                return value
            self._twins[target] = value, FunctionalTensor.to_functional(twin)
        return self._twins[target][1]

    def refuse_writes(self) -> None:
        """Raise CaptureError for a constant that was written: the next call would not see it.

        Raises:
            CaptureError: With the tensor's name and a line that uses it.
        """
        for target, (value, twin) in self._twins.items():
            if torch._functionalize_has_data_mutation(twin.elem):  # type: ignore[attr-defined]
                node = next(node for node in self.graph.nodes if node.target == target)
                user = next(iter(node.users), node)
                name = self._names.get(id(value)) or re.sub(r"^[LG]_", "", target).strip("_")
                raise CaptureError(
                    f"forward writes into {name}, which is neither a buffer nor an input",
                    source=line_in(user.meta.get("stack_trace") or ""),
                    remedy=f'call self.register_buffer("{name.rpartition(".")[2]}", ...) in the __init__ of the module '
                    "that uses it: a buffer is a state of the program",
                )


def names_of_attributes(model: torch.nn.Module) -> dict[int, str]:
    """Return the path of each tensor that is a plain attribute of a module of a model, by its id."""
    return {
        id(value): f"{path}.{name}" if path else name
        for path, member in model.named_modules() for name, value in vars(member).items()
        if isinstance(value, torch.Tensor)
    }
