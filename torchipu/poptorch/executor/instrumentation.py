"""Lets the host's module of a trained model fetch its weights from the device when somebody looks at them."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.nn.utils import parametrize

from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError

OWNERS = "_poptorch_owners"
"""Attribute of an instrumented tensor or module: weak references to the executors that hold its values."""


class Owner(Protocol):
    """What an executor offers here."""

    @property
    def _host_version(self) -> int:
        """How often weights have come to the host."""
        ...

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if those of the device are newer."""
        ...

    def destroy(self) -> None:
        """Give the device back and undo the instrumentation."""
        ...


def fetch(instrumented: Any) -> None:
    """Let the executors that hold the values of a tensor or module bring them to the host."""
    if isRunningOnIpu():
        return
    for reference in instrumented.__dict__.get(OWNERS, ()):
        owner = reference()
        if owner is not None:
            owner.copyWeightsToHostIfNeeded()


def fetch_tensors(module: torch.nn.Module) -> None:
    """Let the executors that hold values of a module's parameters and buffers bring them to the host."""
    for tensor in _tensors(module):
        if isinstance(tensor, _Lazy):
            fetch(tensor)


class _Lazy(torch.Tensor):
    """What `PoptorchParameter` and `PoptorchBuffer` share."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Fetch the weights before anything is done with one."""
        for argument in (*args, *(kwargs or {}).values()):
            if isinstance(argument, _Lazy):
                fetch(argument)
            elif isinstance(argument, (list, tuple)):
                for member in argument:
                    if isinstance(member, _Lazy):
                        fetch(member)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy values and kind."""
        if id(self) in memo:
            return memo[id(self)]
        fetch(self)
        with torch._C.DisableTorchFunctionSubclass():
            twin = copy.deepcopy(self.detach(), memo)
            twin = torch.nn.Parameter(twin, self.requires_grad) if isinstance(self, torch.nn.Parameter) else twin
        twin.__class__ = type(self)
        twin.__dict__[OWNERS] = list(self.__dict__.get(OWNERS, ()))
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain tensor."""
        fetch(self)
        with torch._C.DisableTorchFunctionSubclass():
            return plain(self).__reduce_ex__(protocol)


class PoptorchParameter(_Lazy, torch.nn.Parameter):
    """A parameter of a model wrapped for training."""

    __torch_function__ = _Lazy.__torch_function__
    __deepcopy__ = _Lazy.__deepcopy__
    __reduce_ex__ = _Lazy.__reduce_ex__


class PoptorchBuffer(_Lazy):
    """A buffer of a model wrapped for training."""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor or parameter with the memory of an instrumented one."""
    with torch._C.DisableTorchFunctionSubclass():
        twin = tensor.detach()
        return torch.nn.Parameter(twin, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else twin


# ---------------------------------------------------------------------- modules
def shallow(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module with the same members, parameters and buffers, and its plain attributes as they are now."""
    if not parametrize.is_parametrized(module):
        return copy.copy(module)
    twin = type(module).__new__(type(module))  # copy.copy asks for a state, which such modules refuse to give
    twin.__dict__.update(module.__dict__)
    return twin


def plain_twin(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module with the same members as one that is or was wrapped for training, of the user's own class."""
    twin = shallow(module)
    twin.__dict__.pop(OWNERS, None)
    if is_instrumented(twin):
        twin.__class__ = type(twin).__bases__[-1]
    return twin


class _Wrapped:
    """Methods that an instrumented module has beside its own."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("_parameters", "_buffers", "forward"):
            fetch(self)
        return super().__getattribute__(name)

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Fetch the weights if those of the device are newer; return whether it was so."""
        owner = owner_of(self)
        return owner.copyWeightsToHostIfNeeded() if owner is not None else False

    def destroy(self) -> None:
        """Give the executor's device back and make this module a plain one again."""
        owner = owner_of(self)
        if owner is not None:
            owner.destroy()
        if isinstance(self, torch.nn.Module):
            uninstrument(self, owner)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state with plain tensors, which load where there is no PopTorch."""
        fetch(self)
        found = super().state_dict(*args, **kwargs)  # type: ignore[misc]
        for name, value in found.items():
            if isinstance(value, _Lazy):
                found[name] = plain(value)
        return found

    def __copy__(self) -> Any:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        fetch(self)
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        owners = list(self.__dict__.get(OWNERS, ()))
        twin.__dict__.update({
            name: copy.deepcopy(value, memo) for name, value in self.__dict__.items() if name != OWNERS
        })
        twin.__dict__[OWNERS] = owners
        return twin

    def __reduce_ex__(self, protocol: Any) -> Any:
        fetch(self)
        state = {name: value for name, value in self.__dict__.items() if name != OWNERS}
        return restore_module, (type(self).__bases__[-1], state)


def restore_module(kind: type[torch.nn.Module], state: dict[str, Any]) -> torch.nn.Module:
    """Return a module that was pickled while instrumented; it is a plain one."""
    module = kind.__new__(kind)
    module.__dict__.update(state)
    return module


def is_instrumented(module: object) -> bool:
    """Whether a module is wrapped for training."""
    return isinstance(module, _Wrapped)


def owner_of(module: object) -> Owner | None:
    """Return the training executor of a module, or None."""
    if not isinstance(module, _Wrapped):
        return None
    owners = [reference() for reference in module.__dict__.get(OWNERS, ())]
    return next((owner for owner in owners if owner is not None), None)


def instrument(module: torch.nn.Module, owner: Owner) -> None:
    """Change the classes of a module, its parameters and its buffers.

    Raises:
        Error: A buffer is no plain tensor.
    """
    for name, buffer in module.named_buffers():
        if type(buffer) not in (torch.Tensor, PoptorchBuffer):
            raise createPoptorchError(
                f"All buffers must be an instance of torch.Tensor (got {type(buffer)} for {name})"
            )
    reference = weakref.ref(owner)
    for tensor in _tensors(module):
        kind = PoptorchParameter if isinstance(tensor, torch.nn.Parameter) else PoptorchBuffer
        if type(tensor) in (torch.Tensor, torch.nn.Parameter):
            _set_kind(tensor, kind)
        if isinstance(tensor, _Lazy):
            tensor.__dict__.setdefault(OWNERS, []).append(reference)
    kind_of_module = type(module)
    module.__dict__[OWNERS] = [reference]
    name = f"Poptorch{kind_of_module.__name__}"
    module.__class__ = type(name, (_Wrapped, kind_of_module), {"__module__": kind_of_module.__module__})


def uninstrument(module: torch.nn.Module, owner: Owner | None) -> None:
    """Undo `instrument`; tensors that another executor holds too stay as they are."""
    if isinstance(module, _Wrapped):
        del module.__dict__[OWNERS]
        module.__class__ = type(module).__bases__[-1]
    for tensor in _tensors(module):
        if isinstance(tensor, _Lazy):
            others = [r for r in tensor.__dict__.get(OWNERS, ()) if r() is not None and r() is not owner]
            if others:
                tensor.__dict__[OWNERS] = others
            else:
                tensor.__dict__.pop(OWNERS, None)
                _set_kind(tensor, _plain_kind(tensor))


@contextlib.contextmanager
def as_plain(module: torch.nn.Module) -> Iterator[None]:
    """Let parameters and buffers be plain ones meanwhile: what traces them knows no others."""
    changed = [(tensor, type(tensor)) for tensor in _tensors(module) if isinstance(tensor, _Lazy)]
    for tensor, _ in changed:
        _set_kind(tensor, _plain_kind(tensor))
    try:
        yield
    finally:
        for tensor, kind in changed:
            _set_kind(tensor, kind)


@contextlib.contextmanager
def without_gradients(module: torch.nn.Module) -> Iterator[None]:
    """Let parameters made in ``torch.inference_mode()`` ask for no gradient meanwhile: what traces them cannot either.

    Args:
        module: Wrapped for inference.
    """
    changed = [tensor for tensor in module.parameters() if tensor.is_inference() and tensor.requires_grad]
    for tensor in changed:
        tensor.requires_grad_(False)
    try:
        yield
    finally:
        with torch.inference_mode():
            for tensor in changed:
                tensor.requires_grad_(True)


def _set_kind(tensor: torch.Tensor, kind: type[torch.Tensor]) -> None:
    tensor.__class__ = kind


def _plain_kind(tensor: torch.Tensor) -> type[torch.Tensor]:
    return torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else torch.Tensor


def _tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    # By way of __dict__: the attribute itself would fetch the weights.
    held = [
        tensor for member in module.modules() for kind in ("_parameters", "_buffers")
        for tensor in member.__dict__.get(kind, {}).values() if tensor is not None
    ]
    return list({id(tensor): tensor for tensor in held}.values())


_UNWRAPPED: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def unwrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Make a module wrapped for training a plain one, until `rewrapModelIfNecessary`."""
    owner = owner_of(model)
    if owner is not None:
        fetch(model)
        uninstrument(model, owner)
        _UNWRAPPED[model] = weakref.ref(owner)


def rewrapModelIfNecessary(model: torch.nn.Module) -> None:
    """Wrap a module again that `unwrapModelIfNecessary` has made a plain one."""
    reference = _UNWRAPPED.pop(model, None)
    owner = reference() if reference is not None else None
    if owner is not None and not is_instrumented(model):
        instrument(model, owner)
