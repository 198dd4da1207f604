"""Blocks: which part of the model runs on which IPU, by context manager, by module, by decorator.

While a model is captured (`placing`), a block that begins holds for every op until another begins. Otherwise none of
this does anything, so that the same model runs on the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

from torchipu.poptorch.operators.placing import placing_now
from torchipu.poptorch.poptorch_core import createPoptorchError

P = ParamSpec("P")
T = TypeVar("T")


class Block(torch.nn.Module):
    """A context manager whose ops form a block; after it no block is active.

    Args:
        user_id: Name of the block; None for "0", "1", ... in the order in which blocks run.
        ipu_id: IPU, from 0 within the model; the strategy may have another.
    """

    def __init__(self, user_id: str | None = None, ipu_id: int | None = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> None:
        Block.start(self._user_id, self._ipu_id)

    def __exit__(self, *error: object) -> None:
        if (placing := placing_now()) is not None:
            placing.end()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: int | None = None) -> None:
        """Begin a block that lasts until another begins.

        Args:
            user_id: Name of the block; None for an automatic one.
            ipu_id: IPU, from 0 within the model.
        """
        if (placing := placing_now()) is not None:
            placing.begin(placing.automatic_id() if user_id is None else user_id, ipu_id)

    @staticmethod
    def useAutoId() -> None:
        """Begin automatic names from "0" again."""
        if (placing := placing_now()) is not None:
            placing.restart_ids()


class _BlockHook:
    """Begins a block before a module runs; an object and no closure, so that the module can be copied and pickled.

    Args:
        user_id: Name of the block, or None.
        ipu_id: IPU of the block, or None.
    """

    def __init__(self, user_id: str | None, ipu_id: int | None) -> None:
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *_: Any) -> None:
        """Begin the block."""
        if (placing := placing_now()) is not None:
            placing.begin(placing.id_of(self) if self._user_id is None else self._user_id, self._ipu_id)

    def __repr__(self) -> str:
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class _BeginBlockFunction(torch.nn.Module):
    """A function whose call begins a block.

    Args:
        function: What is called.
        user_id: Name of the block, or None.
        ipu_id: IPU of the block, or None.
    """

    def __init__(self, function: Callable[..., Any], user_id: str | None, ipu_id: int | None) -> None:
        super().__init__()
        self._layer_to_call = function
        self._user_id = user_id
        self._ipu_id = ipu_id
        self.register_forward_pre_hook(_BlockHook(user_id, ipu_id))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(layer_to_call: Any, user_id: str | None = None, ipu_id: int | None = None) -> torch.nn.Module:
    """Let a block begin with a module: its ops and all that follow belong to it until another begins.

    Args:
        layer_to_call: A module, changed in place, or a function.
        user_id: Name of the block; None for an automatic one.
        ipu_id: IPU, from 0 within the model.

    Returns:
        The module, or a module that calls the function.

    Raises:
        Error: It cannot be called, or a block begins with it already.
    """
    if not callable(layer_to_call):
        raise createPoptorchError("Expected torch.nn.Module or a callable for BeginBlock, not "
                                  f"{type(layer_to_call).__name__}")
    if not isinstance(layer_to_call, torch.nn.Module):
        return _BeginBlockFunction(layer_to_call, user_id, ipu_id)
    if _hook_of(layer_to_call) is not None:
        raise createPoptorchError("module has already been assigned to a block. It is not possible to assign a "
                                  "module to more than one block: call poptorch.removeBlocks first.")
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def BlockFunction(user_id: str | None = None, ipu_id: int | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that runs a function within a block.

    Args:
        user_id: Name of the block; None for an automatic one.
        ipu_id: IPU, from 0 within the model.
    """
    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def within(*args: P.args, **kwargs: P.kwargs) -> T:
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return within

    return decorate


def removeBlocks(module: torch.nn.Module) -> None:
    """Undo `BeginBlock` for a module and all within it.

    Args:
        module: The module.
    """
    if not isinstance(module, torch.nn.Module):
        raise AssertionError(f"removeBlocks takes a torch.nn.Module, not {type(module)}")
    for member in module.modules():
        for key, hook in list(member._forward_pre_hooks.items()):
            if isinstance(hook, _BlockHook):
                del member._forward_pre_hooks[key]


def _hook_of(module: torch.nn.Module) -> _BlockHook | None:
    """Return the hook with which a block begins at a module."""
    hooks: Mapping[int, object] = module._forward_pre_hooks
    return next((hook for hook in hooks.values() if isinstance(hook, _BlockHook)), None)


def module_repr(module: torch.nn.Module) -> str:
    """Return the text of a module, with ``BeginBlock`` before the modules with which one begins."""
    extra = module.extra_repr().splitlines()
    children = []
    for name, child in module.named_children():
        first, *others = module_repr(child).splitlines()
        children.append("\n".join([f"({name}): {first}", *(f"  {line}" for line in others)]))
    name = module._get_name()
    hook = _hook_of(module)
    name = f"{hook!r} {name}" if hook is not None else name
    if not children and len(extra) <= 1:
        return f"{name}({''.join(extra)})"
    return "\n".join([f"{name}(", *(f"  {line}" for line in (*extra, *children)), ")"])


def poptorch_print(value: Any, *values: Any, **keywords: Any) -> None:
    """Print as Python does, and before that a module's text with its blocks.

    Args:
        value: What is printed first.
        *values: Further values.
        **keywords: As for ``print``.
    """
    if isinstance(value, torch.nn.Module):
        print(module_repr(value))
    print(value, *values, **keywords)
