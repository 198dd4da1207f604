"""Where tensors are while a model is captured: what it makes is the device's, what it finds elsewhere is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from torchipu.capture.distributions import unvalidated
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments import structure
from torchipu.poptorch.operators.constants import ON_DEVICE, is_transformed, memory_of, refuse_use, refuse_write
from torchipu.poptorch.tracing.writes import written_by

FACTORIES: frozenset[Any] = frozenset({
    torch.arange, torch.empty, torch.full, torch.full_like, torch.linspace, torch.logspace, torch.ones, torch.rand,
    torch.randint, torch.randn, torch.randperm, torch.range, torch.tensor, torch.zeros, torch.zeros_like,
})
IPU = "ipu"
_TENSOR: Any = torch.Tensor
ANSWERS: dict[Any, Any] = {
    _TENSOR.device.__get__: torch.device(IPU, 0), _TENSOR.is_ipu.__get__: True, _TENSOR.is_cpu.__get__: False,
    torch.Tensor.get_device: 0, torch.get_device: 0,
}
"""What a captured tensor answers who asks where it is."""
CAPTURED_ON = torch.device("cpu")


@contextlib.contextmanager
def devices_seen(
    model: torch.nn.Module, names: set[str], made: dict[int, torch.Tensor] | None = None,
) -> Iterator[None]:
    """Say of calls that make a tensor without naming a device that it is made on the IPU; refuse tensors of the host.

    Arguments of distributions are not validated meanwhile, since there are no values to look at.

    Args:
        model: Tensors that are attributes of its modules are constants of the program.
        names: Functions of which it was said already; added to.
        made: Constants that forward makes, by id; added to from outside while it runs.
    """
    with unvalidated(), _Devices(model, names, {} if made is None else made):
        yield


class _Devices(TorchFunctionMode):
    """Sees every call into torch.

    Args:
        model: Owner of the constants.
        names: Functions of which it was said already that their tensor is made on the IPU.
        made: Constants that forward makes.
    """

    def __init__(self, model: torch.nn.Module, names: set[str], made: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.model, self.names, self.made = model, names, made
        kinds = {kind for member in model.modules() for kind in type(member).__mro__}
        own = [kind for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))]
        holders: list[Any] = [*model.modules(), *own]
        self.constants = {
            id(tensor): tensor for holder in holders for tensor in structure.tensors_in(dict(vars(holder)))
        }
        self.attributes = {memory_of(t) for t in self.constants.values() if not isinstance(t, ON_DEVICE)}

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in ANSWERS and args and isinstance(args[0], ON_DEVICE):
            return ANSWERS[function]
        args, kwargs = tuple(map(_named, args)), {name: _named(value) for name, value in (kwargs or {}).items()}
        if (function in FACTORIES or _is_normal_of_numbers(function, args, kwargs)) and kwargs.get("device") is None:
            self._say(function.__name__)
        operands = list(structure.tensors_in((args, kwargs)))
        is_on_device = any(isinstance(tensor, ON_DEVICE) for tensor in operands)
        if is_on_device:
            for tensor in operands:
                self._check(tensor)
        target = written_by(function, args, kwargs)
        if target is not None and not isinstance(target, FunctionalTensor) and not is_transformed(target) and (
            is_on_device or isinstance(target, FakeTensor) or memory_of(target) in self.attributes
        ):
            refuse_write(self.model, target)
        result = function(*args, **kwargs)
        if not any(isinstance(tensor, FunctionalTensor) for tensor in operands):
            result = _moved(result, operands)
        # What a call in forward has made of the host's values is a constant too.
        self.constants |= {id(t): t for t in structure.tensors_in(result) if not isinstance(t, ON_DEVICE)}
        return result

    def _check(self, tensor: torch.Tensor) -> None:
        is_known = isinstance(tensor, (*ON_DEVICE, torch.nn.Parameter)) or tensor.dim() == 0 or is_transformed(tensor)
        if not is_known and id(tensor) not in self.constants and id(tensor) not in self.made:
            refuse_use(tensor)

    def _say(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            logger.warning("No device set in torch.%s(): forcing to IPU", name)


def _moved(result: Any, operands: Sequence[torch.Tensor]) -> Any:
    """Return a result that was made of constants alone as a tensor of the device, so that it may be written into.

    A view of a constant stays one: what were written into it would be written into the constant.
    """
    if not isinstance(result, FakeTensor):
        return result
    if any(memory_of(tensor, result) == memory_of(result) for tensor in operands):
        return result
    return FunctionalTensor.to_functional(result)


def _named(value: Any) -> Any:
    """Return an argument; for the device ``ipu``, which a model may name, the one on which tensors are captured."""
    if isinstance(value, torch.device) and value.type == IPU:
        return CAPTURED_ON
    return CAPTURED_ON if isinstance(value, str) and value.partition(":")[0] == IPU else value


def _is_normal_of_numbers(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return function is torch.normal and not any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
