"""Tensors of the host that are constants of a program: which memory they lie in, and that nothing writes them."""

from __future__ import annotations

import sys
from typing import NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.capture.fx_source import line_in
from torchipu.capture.running import user_line
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments import structure
from torchipu.poptorch.poptorch_core import createPoptorchError

ON_DEVICE = (FunctionalTensor, FakeTensor)


def is_of_host(value: object) -> bool:
    """Whether something is a tensor with values, not one of a capture; torch's own code hands those about bare too."""
    if not isinstance(value, torch.Tensor) or isinstance(value, ON_DEVICE):
        return False
    return not torch._is_functional_tensor(value) and not is_transformed(value)


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a transform of `torch.func` holds a tensor: it wraps what it maps or differentiates."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def memory_of(tensor: torch.Tensor, like: torch.Tensor | None = None) -> int:
    """Return which memory a tensor lies in; beside a tensor without values, that of its twin without values."""
    if isinstance(like, FakeTensor) and not isinstance(tensor, ON_DEVICE):
        tensor = like.fake_mode.from_tensor(tensor)
    return tensor.untyped_storage()._cdata


def refuse_write(model: torch.nn.Module | None, target: torch.Tensor) -> NoReturn:
    """Raise Error for a write into a tensor that is a constant of the program.

    Args:
        model: What runs; its attributes are looked through for the tensor's name.
        target: The tensor, or a view of it.
    """
    what, remedy = _named(model, target)
    line = line_in(user_line(sys._getframe(1)))
    raise createPoptorchError(
        f"{what} is written when calling the forward method, but it is no buffer: it is a constant of the program, and "
        f"what is written would be lost{f' ({line})' if line.file else ''}. Make it a buffer with {remedy}."
    )


def warn_of_write(model: torch.nn.Module | None, target: torch.Tensor) -> None:
    """Warn of a write of the host into a tensor that is a constant of the program, as PopTorch allows it.

    Args:
        model: What runs; its attributes are looked through for the tensor's name.
        target: The tensor, or a view of it.
    """
    what, remedy = _named(model, target)
    logger.warning(
        "%s is written when calling the forward method, but it is no buffer: it is a constant of the program, so that "
        "every call begins with the value that it had when the model was compiled. If it is to change from call to "
        "call, make it a buffer with %s.", what, remedy,
    )


def _named(model: torch.nn.Module | None, target: torch.Tensor) -> tuple[str, str]:
    """Return what messages call a tensor, and what makes it a buffer."""
    found = next((
        (f"{path}.{name}" if path else name, name)
        for path, member in (() if model is None else model.named_modules())
        for name, value in vars(member).items() if not name.startswith("_")
        for tensor in structure.tensors_in(value)
        if not isinstance(tensor, ON_DEVICE) and memory_of(tensor, target) == memory_of(target)
    ), None)
    what = f"Attribute {found[0]}" if found else f"A tensor of the host, of shape {list(target.shape)},"
    return what, f'self.register_buffer("{found[1]}", ...)' if found else "register_buffer in the model's __init__"
