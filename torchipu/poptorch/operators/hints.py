"""Words to the compiler about a tensor or about the ops of a part of the model; values stay as they are."""

from __future__ import annotations

import contextlib
import json
from types import TracebackType
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import traceback

from torchipu.capture.available_memory import available_memory
from torchipu.capture.block import ATTRIBUTES_KEY, SCOPE_KEY
from torchipu.capture.checkpoint import nop as nop_op
from torchipu.capture.checkpoint import recomputation_checkpoint
from torchipu.capture.printing import FORMATS, Layout, print_tensor
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.poptorch_core import createPoptorchError


def recomputationCheckpoint(*tensors: Any) -> Any:
    """Let the backward find tensors kept where the compiler would compute them again.

    Args:
        *tensors: Tensors, or one list or tuple of them.

    Returns:
        The same values, to be used from here on: one alone as it is, several as a tuple, a container as its kind.

    Raises:
        ValueError: Something else is among them.
    """
    if len(tensors) == 1 and isinstance(tensors[0], (list, tuple)):
        return type(tensors[0])(_checkpoint(tensor) for tensor in tensors[0])
    kept = tuple(_checkpoint(tensor) for tensor in tensors)
    return kept[0] if len(kept) == 1 else kept


def _checkpoint(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"poptorch.recomputationCheckpoint: All inputs must be tensors, but one is a {type(tensor)}")
    return recomputation_checkpoint(tensor) if isRunningOnIpu() else tensor


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor through an op that does nothing and that stays in the program.

    Args:
        tensor: Any tensor.

    Raises:
        Error: It is none.
    """
    _check_tensor("nop", tensor)
    return nop_op(tensor) if isRunningOnIpu() else tensor


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Say which part of a tile's memory the op that makes a tensor may use for temporary values.

    Args:
        tensor: Result of a convolution or a matrix product; what is said holds for its gradients too.
        available_memory_proportion: Above 0, at most 1.

    Returns:
        The same value, to be used from here on.

    Raises:
        Error: It is no tensor, or the part is none.
    """
    _check_tensor("set_available_memory", tensor)
    is_number = isinstance(available_memory_proportion, (int, float))
    if not is_number or isinstance(available_memory_proportion, bool) or not 0 < available_memory_proportion <= 1:
        raise createPoptorchError(
            "poptorch.set_available_memory: available_memory_proportion must be above 0 and at most 1, not "
            f"{available_memory_proportion!r}"
        )
    return available_memory(tensor, float(available_memory_proportion)) if isRunningOnIpu() else tensor


def ipu_print_tensor(
    tensor: torch.Tensor, title: str = "", print_gradient: bool = True, summarise_threshold: int = 1000,
    edge_items: int = 3, max_line_width: int = 80, digits: int = 4, float_format: str = "auto", separator: str = ", ",
    open_bracket: str = "(", close_bracket: str = ")",
) -> torch.Tensor:
    """Print a tensor on stderr each time that the program comes here, and its gradient in the backward.

    Args:
        tensor: What is printed.
        title: Stands before it; before the gradient with ``_gradient`` behind it.
        print_gradient: Whether to print the gradient.
        summarise_threshold: Tensors of more elements are shortened.
        edge_items: Elements at either end of a dimension of a shortened tensor.
        max_line_width: Characters of a line.
        digits: Digits behind the point.
        float_format: ``auto``, ``fixed``, ``scientific`` or ``none``.
        separator: Between elements.
        open_bracket: Before the elements of a dimension.
        close_bracket: Behind them.

    Returns:
        The same value, to be used from here on.

    Raises:
        Error: It is no tensor, or the format is unknown.
    """
    _check_tensor("ipu_print_tensor", tensor)
    if float_format not in FORMATS:
        raise createPoptorchError(
            f"poptorch.ipu_print_tensor: float_format must be one of {', '.join(FORMATS)}, not {float_format!r}"
        )
    if not isRunningOnIpu():
        return tensor
    layout = Layout(
        summarise_threshold, edge_items, max_line_width, digits, float_format, separator, open_bracket, close_bracket,
    )
    title = title or "print_tensor"
    return print_tensor(tensor, title, f"{title}_gradient" if print_gradient else "", layout)


def getIpuTensorId(tensor: torch.Tensor) -> int:
    """Return a number that tells a tensor of a model from others while the model is captured.

    Args:
        tensor: Any tensor within ``forward``.

    Raises:
        Error: The model is not being captured.
    """
    _check_tensor("getIpuTensorId", tensor)
    if not isinstance(tensor, FunctionalTensor):
        raise createPoptorchError("poptorch.getIpuTensorId: the tensor is not on the IPU")
    return id(tensor)


def _check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise createPoptorchError(f"poptorch.{name} must be given a tensor, not {type(value)}")


# ---------------------------------------------------------------------- ops of a part of the model
class _Annotation(contextlib.AbstractContextManager[None]):
    """Lets the ops within carry an annotation beside those they have, such as their block."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._before: list[Any] = []

    def _within(self, outer: Any) -> Any:
        """Return the annotation of the ops within, given that of those around."""
        raise NotImplementedError

    def __enter__(self) -> None:
        custom = traceback.current_meta.get("custom", {})
        self._before.append(custom.get(self._key))
        if isRunningOnIpu():
            _annotate(self._key, self._within(custom.get(self._key)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        before = self._before.pop()
        if isRunningOnIpu():
            _annotate(self._key, before)


def _annotate(key: str, value: Any) -> None:
    # A new dictionary, since the nodes of ops before hold the old one; a block may have begun since.
    custom = {name: held for name, held in traceback.current_meta.get("custom", {}).items() if name != key}
    traceback.current_meta["custom"] = custom if value is None else {**custom, key: value}


class NameScope(_Annotation):
    """A context manager whose name stands in the names of the ops within.

    Args:
        name: A part of a path, such as ``decoder``.
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise AssertionError(f"Parameter to NameScope must be a string, not {type(name)}")
        super().__init__(SCOPE_KEY)
        self.name = name

    def _within(self, outer: Any) -> Any:
        modules = traceback.current_meta.get("nn_module_stack") or {}
        path = next(reversed(modules.values()))[0] if modules else ""
        return (*(outer or ()), (path, self.name))


class Attribute(_Annotation):
    """A context manager whose attributes are attached to the ops within, beside those of attributes around it.

    Args:
        **attributes: By name of the attribute its keys and values, such as ``__outline={"layer": "embedding"}``.
    """

    def __init__(self, **attributes: dict[str, Any]) -> None:
        for name, pairs in attributes.items():
            if not isinstance(pairs, dict):
                raise createPoptorchError(f"Attribute {name} must be a dictionary of keys and values, not {pairs!r}")
        super().__init__(ATTRIBUTES_KEY)
        self.attributes = attributes

    def _within(self, outer: Any) -> Any:
        merged = {name: json.loads(pairs) for name, pairs in (outer or {}).items()}
        for name, pairs in self.attributes.items():
            merged[name] = {**merged.get(name, {}), **{str(key): str(value) for key, value in pairs.items()}}
        return {name: json.dumps(pairs) for name, pairs in merged.items()}
