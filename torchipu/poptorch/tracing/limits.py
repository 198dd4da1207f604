"""Calls that PopTorch refuses when it compiles a model, in its words.

Some of them torchipu could compute; a program that relies on the refusal finds it all the same, and `torch.compile`
with the backend ``ipu`` has none of these limits. What torch itself refuses keeps torch's words, but for
what `refusals` holds.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from torchipu.capture.fx_source import line_in
from torchipu.capture.running import ExplainedError
from torchipu.poptorch.poptorch_core import PY_ERROR, Error, createPoptorchError
from torchipu.poptorch.tracing.substitutes import NO_MINLENGTH

Given = Callable[[int, str, Any], Any]
"""Returns an argument of a call by position and name, or a default."""

Check = Callable[[str, Given], str | None]
"""Returns what is wrong with a call of a name, or None."""


def _weight(op: str, position: int) -> Check:
    def check(name: str, given: Given) -> str | None:
        if given(position, "weight", None) is None:
            return None
        return f'Parameter "weight" is unsupported for aten::{op}'

    return check


def _ctc_loss(name: str, given: Given) -> str | None:
    if given(5, "reduction", "mean") in ("none", 0):
        return 'CTCLoss with reduction="none" is currently not supported'
    targets = given(1, "targets", None)
    if isinstance(targets, torch.Tensor) and targets.dim() != 2:
        return (
            "CTCLoss needs 2-dimensional targets: pad the label sequences to one length and stack them, instead of "
            f"{list(targets.shape)}"
        )
    return None


def _recurrent(cell: str) -> Check:
    """Return the check of a recurrent layer; the words differ from cell to cell."""
    is_plain, verb = cell == "RNN", "is " if cell == "RNN" else ""

    def check(name: str, given: Given) -> str | None:
        shift = 1 if isinstance(given(3, "", None), (list, tuple)) else 0  # packed sequences
        has_biases, layers, dropout, _, both = (given(3 + shift + place, "", None) for place in range(5))
        if not has_biases and cell != "GRU":
            return f"{cell} without biases {verb}not supported"
        if layers != 1:
            return f"Only {cell} with 1 layer {verb}supported"
        if dropout != 0:
            return f"{cell} only supports dropout = 0.0"
        if both:
            return "Bidirectional RNN is not supported" if is_plain else f"bidirectional {cell} not supported"
        return None

    return check


def _embedding(name: str, given: Given) -> str | None:
    if given(5, "scale_grad_by_freq", False) or given(6, "sparse", False):
        return "Unsupported aten::embedding operation: scale_grad_by_freq and sparse must be False"
    return None


def _embedding_bag(name: str, given: Given) -> str | None:
    if given(5, "scale_grad_by_freq", False) or given(7, "sparse", False):
        return "Unsupported aten::embedding_bag operation: scale_grad_by_freq and sparse must be False"
    return None if given(10, "padding_idx", None) is None else "padding_idx parameter is unsupported."


def _one_hot(name: str, given: Given) -> str | None:
    classes = given(1, "num_classes", -1)
    if isinstance(classes, int) and classes >= 0:
        return None
    return "OneHot num classes must be specified and must be constant."


def _gelu(name: str, given: Given) -> str | None:
    approximate = given(1, "approximate", "none")
    return None if approximate in ("none", "tanh") else f"Unknown GELU approximate '{approximate}'"


def _bitwise(name: str, given: Given) -> str | None:
    tensors = [value for value in (given(0, "input", None), given(1, "other", None)) if isinstance(value, torch.Tensor)]
    if any(tensor.is_floating_point() for tensor in tensors):
        return f"{name.strip('_')} supports only bool and integer types"
    if any(tensor.dtype in (torch.int8, torch.uint8) for tensor in tensors):
        return "Poplar does not support binary operations on 8-bit integral types."
    return None


def _adaptive(dims: int) -> Check:
    def check(name: str, given: Given) -> str | None:
        tensor, wanted = given(0, "input", None), given(1, "output_size", None)
        if not isinstance(tensor, torch.Tensor) or tensor.dim() <= dims:
            return None
        sizes = list(tensor.shape[-dims:])
        asked = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted] * dims
        outputs = [size if one is None else one for one, size in zip(asked, sizes, strict=False)]
        if all(isinstance(one, int) and one > 0 and size % one == 0 for one, size in zip(outputs, sizes, strict=False)):
            return None
        return (
            f"Adaptive average pooling is only supported where the input size {sizes} is divisible by the output size "
            f"{outputs}"
        )

    return check


def _interpolate(name: str, given: Given) -> str | None:
    mode = given(3, "mode", "nearest")
    if mode in ("nearest", "bilinear", "bicubic"):
        return None
    return f"Upsampling by {mode!r}: currently only 'nearest' is supported, and 'bilinear' and 'bicubic' of images"


def _norm(label: str) -> Check:
    def check(name: str, given: Given) -> str | None:
        tensor = given(0, "input", None)
        if not isinstance(tensor, torch.Tensor) or tensor.is_floating_point():
            return None
        return f'{label} input "input" of type {str(tensor.dtype).removeprefix("torch.")} not supported'

    return check


def _scatter_reduce(name: str, given: Given) -> str | None:
    reduction = given(4, "reduce", None)
    if reduction in ("sum", "prod", "mean", "amax", "amin"):
        return None
    return f"Unsupported reduction type for scatter_reduce: {reduction}"


def _backward(name: str, given: Given) -> str | None:
    return (
        "Tensor.backward() within forward is not supported: the backward pass is made of the loss by itself. Take a "
        "gradient that forward computes with by torch.autograd.grad(..., create_graph=True)."
    )


class UnknownShapeError(Error, ExplainedError, DynamicOutputShapeException):
    """The shape of a result depends on values; PopTorch lets torch's own exception through.

    Args:
        func: The op.
    """

    def __init__(self, func: Any) -> None:
        op = str(func).removeprefix("aten.").removesuffix(".default")
        message = (
            f"Unsupported ops found in compiled model: [aten::{op}]. The shape of the result of {func} is not known "
            "before the program runs: use torch.where or a mask, which keep the shape."
        )
        super().__init__(f"'{PY_ERROR}': {message}", message=message)
        self.args = (f"'{PY_ERROR}': {message}",)  # torch's class, a data class, leaves out that of exceptions
        self.func = func


BITWISE = ("and", "or", "xor")
CHECKS: Mapping[str, Check] = {
    "nll_loss": _weight("nll_loss_nd", 2), "cross_entropy": _weight("cross_entropy_loss", 2), "ctc_loss": _ctc_loss,
    "lstm": _recurrent("LSTM"), "gru": _recurrent("GRU"), "rnn_tanh": _recurrent("RNN"), "rnn_relu": _recurrent("RNN"),
    "embedding": _embedding, "embedding_bag": _embedding_bag, "one_hot": _one_hot, "gelu": _gelu,
    "adaptive_avg_pool1d": _adaptive(1), "adaptive_avg_pool2d": _adaptive(2), "adaptive_avg_pool3d": _adaptive(3),
    "interpolate": _interpolate, "batch_norm": _norm("batch_norm"), "layer_norm": _norm("layer_norm"),
    "group_norm": _norm("group_norm"), "instance_norm": _norm("instance_norm"),
    "backward": _backward, "scatter_reduce": _scatter_reduce, "scatter_reduce_": _scatter_reduce,
    "__invert__": _bitwise, "bitwise_not": _bitwise, "bitwise_not_": _bitwise,
    **{
        name: _bitwise for word in BITWISE
        for name in (f"__{word}__", f"__r{word}__", f"__i{word}__", f"bitwise_{word}", f"bitwise_{word}_")
    },
}
"""What is looked at of calls into torch, by the name of the function."""

CONSTANTS_ONLY: Mapping[str, tuple[tuple[int, str], str]] = {
    "triu": ((0, "input"), "torch.triu is only supported within constant expressions"),
    "embedding_bag": ((2, "offsets"), "offsets tensor must be a constant."),
}
"""Arguments that must be constants, by the name of the function, and the words for those that are not."""

AS_NUMBERS: Mapping[str, str] = {
    "__int__": "int", "__index__": "int", "__float__": "float", "__bool__": "bool", "item": "", "tolist": "",
}
"""Methods that want the value of a tensor, and the type that they want; empty for that of the tensor."""

SHAPED = ("new_zeros", "new_ones", "new_full", "new_empty", "zeros", "ones", "full", "empty")


STEPPED = "In-place modification of slices with step size other than 1 is not supported."
SHAPE_ONLY = ("requires_grad_", "detach_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_")
"""Methods with a name like those that write, which write no values."""


def _is_stepped(index: Any) -> bool:
    """Whether an index takes every n-th element, by a number that is known."""
    members = index if isinstance(index, tuple) else (index,)
    return any(isinstance(one, slice) and isinstance(one.step, int) and one.step != 1 for one in members)


def _writes(name: str) -> bool:
    """Whether a method writes into its tensor."""
    if name.startswith("__"):
        return name in ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__",
                        "__ipow__", "__iand__", "__ior__", "__ixor__")
    return name.endswith("_") and name not in SHAPE_ONLY


class Limits:
    """The limits that one run of a model may come up against."""

    def __init__(self) -> None:
        self._constants: dict[int, torch.Tensor] = {}
        self._makers: dict[int, str] = {}
        self._stepped: dict[int, torch.Tensor] = {}

    def check(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuse a call that PopTorch refuses.

        Raises:
            Error: It is one.
        """
        name = getattr(function, "__name__", "")

        def given(position: int, keyword: str, default: Any) -> Any:
            return args[position] if position < len(args) else kwargs.get(keyword, default)

        wrong = CHECKS[name](name, given) if name in CHECKS else None
        if wrong is None and name in CONSTANTS_ONLY:
            (position, keyword), words = CONSTANTS_ONLY[name]
            value = given(position, keyword, None)
            wrong = words if isinstance(value, torch.Tensor) and not self._is_constant(value) else None
        if wrong is None and args and isinstance(args[0], FunctionalTensor) and _writes(name):
            is_stepped = id(args[0]) in self._stepped or (name == "__setitem__" and _is_stepped(args[1]))
            wrong = STEPPED if is_stepped else None
        if wrong is not None:
            raise createPoptorchError(wrong)

    def note(self, function: Callable[..., Any], args: Any, kwargs: Any, result: Any) -> None:
        """Note which tensors are constants, and what made those of one element."""
        made = list(_tensors([result]))
        if not made:
            return
        if getattr(function, "__name__", "") == "__getitem__" and _is_stepped(args[1]):
            self._stepped.update((id(tensor), tensor) for tensor in made)
        if all(map(self._is_constant, _tensors([args, kwargs]))):
            self._constants.update((id(tensor), tensor) for tensor in made)  # kept, so that no id is given to another
        for tensor in made:
            if tensor.numel() == 1:
                self._makers[id(tensor)] = getattr(function, "__name__", "").strip("_")

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        return not isinstance(tensor, FunctionalTensor) or id(tensor) in self._constants

    def explain(self, function: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> Exception:
        """Return the error for a call that needs values before the program runs."""
        name = getattr(function, "__name__", "")
        if isinstance(error, DynamicOutputShapeException):
            return UnknownShapeError(error.func)
        if name == "bincount":
            return createPoptorchError(NO_MINLENGTH)
        if name == "arange":
            return createPoptorchError("Unsupported arange op: its bounds must be constants.")
        if name in SHAPED:
            return createPoptorchError(f"{name}: Shape needs to be a static constant")
        if name not in AS_NUMBERS or not args or not isinstance(args[0], torch.Tensor):
            return error
        kind = AS_NUMBERS[name] or _kind_of(args[0].dtype)
        article = "an" if kind == "int" else "a"
        maker = self._makers.get(id(args[0]), "input")
        return createPoptorchError(
            f"Cannot force a non-constant 'aten::{maker}' node to {article} {kind}. Its value is not known before the "
            "program runs: compute with the tensor, for instance by torch.where or poptorch.cond."
            f"{_asked_at()}"
        )


def _asked_at() -> str:
    """Return the user's line that is running, as the end of a message."""
    line = str(line_in("".join(traceback.format_stack())))
    return f" It is asked for at {line}" if line else ""


def _kind_of(dtype: torch.dtype) -> str:
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""What torch raises where a value or a shape is not known at capture."""


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
