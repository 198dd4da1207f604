"""Tensors of the host that are constants of a program: which memory they lie in, and that nothing writes them."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.capture.fx_source import line_in
from torchipu.capture.running import user_frame, user_line
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
        with _disable_current_modes():  # else the twin of a view is made by a call that is captured
            tensor = like.fake_mode.from_tensor(tensor)
    return tensor.untyped_storage()._cdata


def refuse_use(tensor: torch.Tensor) -> NoReturn:
    """Raise Error for a tensor of the host that stands beside one of the device as it lies.

    Args:
        tensor: It is no input, parameter or buffer, and no attribute of the model; the frames of forward tell its name.
    """
    frame = user_frame(sys._getframe(1))
    name = "" if frame is None else _variable(frame, tensor)
    line = line_in(user_line(frame))
    what = f"{name or 'It'} was made outside of forward{f' and is used in {line}' if line.file else ''}"
    own = name if name.isidentifier() else "constant"
    raise createPoptorchError(
        f"Expected an IPU tensor but got tensor(device=cpu, shape={list(tensor.shape)}, dtype={tensor.dtype}). "
        "Constant tensors should be attributes of the model: register them as buffers if they are to change. "
        f'{what}: call self.register_buffer("{own}", {name or "..."}) in the model\'s __init__ and use self.{own}, or '
        f"move it where it is used, as by {name or 'tensor'}.to(x.device), as a constant of the program."
    )


def _variable(frame: FrameType, tensor: torch.Tensor) -> str:
    """Return what code calls a tensor: a variable, an item of one or an attribute of one, or nothing."""
    for variables in (frame.f_locals, frame.f_globals):
        for name, value in variables.items():
            if value is tensor:
                return name
        for name, value in variables.items():
            within = _within(value, tensor)
            if within:
                return f"{name}{within}"
    return ""


def _within(value: Any, tensor: torch.Tensor) -> str:
    """Return how a tensor is reached from a list, a dictionary or an object that holds it, or nothing."""
    if type(value) in (list, tuple):
        return next((f"[{index}]" for index, one in enumerate(value) if one is tensor), "")
    if type(value) is dict:
        return next((f"[{key!r}]" for key, one in value.items() if one is tensor), "")
    held = getattr(value, "__dict__", None)
    return next((f".{key}" for key, one in held.items() if one is tensor), "") if type(held) is dict else ""


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
