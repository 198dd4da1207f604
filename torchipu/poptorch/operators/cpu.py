"""`CPU`: a function that the host runs in the middle of a model; for inference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.host_calls import call_host, register_host_function
from torchipu.poptorch.capturing import is_training_on_ipu, isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError

_numbers = itertools.count()


class CPU:
    """A function or module that runs on the host; its results come back to the device as float32.

    Args:
        layer_to_call: What runs; the parameters of a module are frozen.
        ID: Name of the op.

    Attributes:
        inputs: Arguments that `execute` uses.
        outputs: What it returned, as a list.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        if not callable(layer_to_call):
            raise createPoptorchError(f"poptorch.CPU takes a function or a module, not {type(layer_to_call).__name__}")
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._name = f"cpu.{ID}:{next(_numbers)}"
        self.ID = ID
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []
        self.registerPersistentData()

    def registerPersistentData(self) -> None:
        """Let programs call the function."""
        register_host_function(self._name, lambda inputs, attributes: self._run(inputs))

    def createOperands(self, *args: torch.Tensor) -> None:
        """Set the arguments of `execute`."""
        self.inputs = [argument.detach() for argument in args]

    def execute(self) -> None:
        """Run the function with `inputs` and keep what it returns."""
        self.outputs = self._run(self.inputs)

    def _run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            return _listed(self._layer_to_call(*inputs))

    def __call__(self, *args: torch.Tensor) -> Any:
        """Run the function: in a model on the IPU when its program comes here.

        Args:
            *args: Tensors.

        Returns:
            A tensor or a list of tensors, as the function returns one or several.

        Raises:
            Error: The model is wrapped for training, or an argument is no tensor.
        """
        if not isRunningOnIpu():
            return self._layer_to_call(*args)
        if is_training_on_ipu():
            raise createPoptorchError("poptorch.CPU is only supported in inference.")
        for argument in args:
            if not isinstance(argument, torch.Tensor):
                raise createPoptorchError(f"poptorch.CPU takes tensors, not {type(argument).__name__}")
        returned = self._on_zeros(args)
        like = [torch.empty(result.shape, dtype=torch.float32) for result in _listed(returned)]
        results = call_host(self._name, args, {}, like)
        return results if isinstance(returned, (list, tuple)) else results[0]

    def _on_zeros(self, args: Sequence[torch.Tensor]) -> Any:
        """Return what the function gives for zeros: how many tensors, and their shapes."""
        sizes = [(tuple(argument.shape), argument.dtype) for argument in args]
        layer = self._layer_to_call
        try:
            with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
                zeros = [torch.zeros(shape, dtype=dtype) for shape, dtype in sizes]
                if not isinstance(layer, torch.nn.Module):
                    return layer(*zeros)
                # The model's tensors have no values while it is captured.
                states = dict(itertools.chain(layer.named_parameters(), layer.named_buffers()))
                stand_ins = {name: torch.zeros(state.shape, dtype=state.dtype) for name, state in states.items()}
                return torch.func.functional_call(layer, stand_ins, tuple(zeros))
        except Exception:
            # A function that reads tensors of the model: these have shapes, and so has what it returns.
            with disable_proxy_modes_tracing(), torch.no_grad():
                return layer(*args)


def _listed(returned: Any) -> list[Any]:
    return list(returned) if isinstance(returned, (list, tuple)) else [returned]
