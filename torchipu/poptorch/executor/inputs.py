"""Inputs of a call: what the device can take of them, and what is computed with in their place."""

from __future__ import annotations

import torch

from torchipu.capture.fx_types import foreign_kind, has_counterpart, instead_of
from torchipu.capture.tensor_classes import computes_by_itself, overrides_functions
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments.parser import Arguments
from torchipu.poptorch.executor.state import State
from torchipu.poptorch.held_types import held_as
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError

SYNTHETIC_NORMAL = 2


def synthetic(tensors: list[torch.Tensor], options: Options) -> list[torch.Tensor]:
    """Return what the device computes with in place of the inputs, where `Options.enableSyntheticData` says so.

    Args:
        tensors: The inputs of a call.
        options: The executor's.

    Returns:
        The inputs themselves, or tensors of their sizes and types: zeros, or normal values where numbers are real.
    """
    mode = int(options._popart.options.get("syntheticDataMode", 0))
    if not mode:
        return tensors
    made = [torch.zeros_like(tensor) for tensor in tensors]
    for tensor in made:
        if mode == SYNTHETIC_NORMAL and tensor.is_floating_point():
            tensor.normal_()
    return made


_HELD_RANGE = torch.iinfo(held_as(torch.int64))
UNSUPPORTED_INPUTS = (torch.complex64, torch.complex128)
"""Types that the device does not have and that inputs are not converted from."""


class Inputs:
    """Brings the inputs of an executor into types that the device has.

    Args:
        state: The executor's.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._warned_not_contiguous = False

    def converted(self, tensors: list[torch.Tensor], arguments: Arguments) -> list[torch.Tensor]:
        """Return inputs as the device takes them.

        Args:
            tensors: Those of a call, in its order.
            arguments: The call, for messages.

        Raises:
            Error: An integer does not fit the 32 bits in which the device holds it.
        """
        stand_ins = self._state.stand_ins
        for place, tensor in enumerate(tensors):
            if tensor.dtype is torch.int64:
                _check_range(tensor, arguments)
            if tensor.dtype in stand_ins:
                tensors[place] = tensor.to(stand_ins[tensor.dtype])
            if not tensor.is_contiguous() and not self._warned_not_contiguous:
                logger.warning(
                    "At least one input tensor is not contiguous: non-contiguous tensors will be converted."
                )
                self._warned_not_contiguous = True
        return tensors


def apart(tensors: list[torch.Tensor], model: torch.nn.Module) -> list[torch.Tensor]:
    """Return inputs of which none shares memory with another, or with the model: on the device each has its own.

    Args:
        tensors: Inputs, of any shapes and types.
        model: Its parameters and buffers.
    """
    seen = {_memory(state) for state in (*model.parameters(), *model.buffers())}
    found = []
    for tensor in tensors:
        memory = _memory(tensor)
        found.append(tensor.clone() if memory in seen else tensor)
        seen.add(memory)
    return found


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _check_range(tensor: torch.Tensor, arguments: Arguments) -> None:
    """Raise Error where an integer of an input would be cut to 32 bits."""
    if not tensor.numel():
        return
    least, most = (int(value) for value in torch.aminmax(tensor))
    if least >= _HELD_RANGE.min and most <= _HELD_RANGE.max:
        return
    beyond = int(((tensor < _HELD_RANGE.min) | (tensor > _HELD_RANGE.max)).reshape(-1).to(torch.uint8).argmax())
    place = ", ".join(str(int(number)) for number in torch.unravel_index(torch.tensor(beyond), tensor.shape))
    name = next((name for name, other in arguments.named_tensors() if _same_elements(other, tensor)), "an input")
    raise createPoptorchError(
        f"{name}[{place}] is {tensor.reshape(-1)[beyond].item()}, which does not fit the 32 bits in which the device "
        f"holds torch.int64: its values go from {_HELD_RANGE.min} to {_HELD_RANGE.max}"
    )


def _same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of memory."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def check_inputs(arguments: Arguments) -> None:
    """Refuse arguments that the device cannot take, and say what becomes of others.

    Args:
        arguments: Of a call.

    Raises:
        Error: A tensor is complex or empty, or of a class that computes below the operators of torch.
    """
    for name, tensor in arguments.named_tensors():
        kind = type(tensor).__name__
        if computes_by_itself(tensor):
            raise createPoptorchError(
                f"Unsupported input {name}: tensors of {kind}, which computes in its own __torch_dispatch__. "
                "Pass a plain torch.Tensor with the same values"
            )
        foreign, remedy = foreign_kind(tensor)
        if foreign:
            raise createPoptorchError(f"input {name}: {foreign} cannot be held by the IPU: {remedy}")
        if overrides_functions(tensor):
            logger.warning(
                "Input %s is a %s. It is taken as a plain torch.Tensor: what __torch_function__ of that class does is "
                "left out.", name, kind,
            )
        if tensor.dtype in UNSUPPORTED_INPUTS:
            raise createPoptorchError(f"Unsupported input type torch.{tensor.dtype} for {name}")
        if not has_counterpart(tensor.dtype):
            raise createPoptorchError(
                f"Unsupported input type {tensor.dtype} for {name}: it has no counterpart on the IPU; "
                + instead_of(tensor.dtype)
            )
        if tensor.numel() == 0:
            raise createPoptorchError(
                f"Zero-sized tensors are unsupported (Got shape {list(tensor.shape)}) in the input {name}"
            )
        if tensor.requires_grad:
            logger.warning(
                "Input tensor has requires_grad=True set. This tensor will be detached because backward pass via "
                "inputs is not supported."
            )
    values = [*arguments.positional, *arguments.keyword.values()]
    if any(isinstance(value, dict) for value in values):
        logger.warning("Dictionaries are partially supported as inputs: only their tensors reach the device.")
