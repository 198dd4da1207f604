"""Constants of a forward: tensors made of Python's numbers, whose values torch knows while it captures.

torch computes on the host beside the graph what depends on constants alone, and looks there where a number, a branch or
the size of a result depends on a value; but it keeps values of tensors of one element only, and none of what
`torch.arange` and its like make of numbers. Here both are kept, and Dynamo looks at them where else it gives up.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.tensor import SymNodeVariable, TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

aten, prims = torch.ops.aten, torch.ops.prims

LARGEST = 2**16
"""Elements of the largest tensor whose values are kept: a mask of 256 by 256, which takes microseconds to compute."""

LIKE = frozenset({aten.full_like.default, aten.ones_like.default, aten.zeros_like.default})
NEW = frozenset({aten.new_full.default, aten.new_ones.default, aten.new_zeros.default})
MAKERS = LIKE | NEW | {
    getattr(packet, name) for packet in (
        aten.arange, aten.eye, aten.full, aten.linspace, aten.logspace, aten.ones, aten.range, aten.scalar_tensor,
        aten.tril_indices, aten.triu_indices, aten.zeros, prims.iota,
    ) for name in packet.overloads() if "out" not in name and "Tensor" not in name
}
"""Operators whose results are the same each time, whatever the values of an operand that they are like.

``linspace`` and ``logspace`` between tensors, ``Tensor_Tensor`` and its relatives, depend on values of operands.
"""

UNFILLED = frozenset(
    getattr(packet, name) for packet in (aten.empty_like, aten.new_empty, aten.new_empty_strided)
    for name in packet.overloads()
)
"""Operators whose results hold whatever lay in memory."""


def register() -> None:
    """Let torch keep the values of constants, and Dynamo look at them."""
    if fake_tensor.CONSTANT_NUMEL_LIMIT >= LARGEST:
        return
    fake_tensor.CONSTANT_NUMEL_LIMIT = LARGEST
    fake_impls.op_implementations_checks.insert(0, (MAKERS.__contains__, _made))
    FakeTensorMode._dispatch_impl = _forgetting(FakeTensorMode._dispatch_impl)  # type: ignore[method-assign]
    FakeTensorMode.cache_clear()  # of results that have no values
    _look_at_calls()
    _look_at_branches()


# ---------------------------------------------------------------------- values
def known_values(value: object) -> Tensor | None:
    """Return the values of a tensor of a capture that is a constant, which nothing may write, or None."""
    return value.constant if isinstance(value, FakeTensor) else None


def _made(mode: FakeTensorMode, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a constant on the host beside what stands for it, unless it is large or a number is not known."""
    shown = fake_impls.constructors(mode, function, *args, **kwargs)
    leaves = pytree.tree_leaves((args, kwargs))
    if shown.device.type != "cpu" or not all(map(_is_known, leaves)) or shown.numel() > LARGEST:
        return shown

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if function in NEW:
            return torch.empty(0, dtype=leaf.dtype)
        return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)

    with no_dispatch():
        given = pytree.tree_map(real, (args, kwargs))
        made = function(*given[0], **given[1])
    if not mode.may_turn_const(made):
        return shown
    return mode.fake_tensor_converter.from_real_tensor(mode, made, make_constant=True)


def _forgetting(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Return what computes an operator, and takes nothing for a constant that does not follow from constants alone.

    Operators say what their results look like with tensors that nobody fills, such as ``weight.new_empty(size)``. Of an
    operand that is a constant torch takes these for constants too, with whatever lies in memory.
    """
    def dispatched(
        mode: FakeTensorMode, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None,
    ) -> Any:
        made = dispatch(mode, function, types, args, kwargs)
        for result in (made,) if isinstance(made, Tensor) else pytree.tree_leaves(made):
            values = known_values(result)
            if values is not None and not _follows(function, result, pytree.tree_leaves((args, kwargs))):
                mode.fake_tensor_converter.invalidate_constant_aliases(values)
        return made

    return dispatched


def _follows(function: Any, result: Tensor, operands: Sequence[Any]) -> bool:
    """Say whether the values of a result are those that an operator gives whenever it is called."""
    if function in MAKERS:
        return True
    if function in UNFILLED or torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()):
        return False
    return all(one is result or one.constant is not None for one in operands if isinstance(one, FakeTensor))


def _is_known(leaf: object) -> bool:
    if isinstance(leaf, Tensor):
        return leaf.layout is torch.strided and all(type(size) is int for size in (*leaf.shape, *leaf.stride()))
    return not isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool))


# ---------------------------------------------------------------------- Dynamo
ANSWERS: Mapping[str, Callable[..., Any]] = {
    "item": Tensor.item, "tolist": Tensor.tolist, "equal": torch.equal, "allclose": torch.allclose,
    "is_nonzero": torch.is_nonzero,
}
"""Methods of tensors that give Python's values."""
_UNKNOWN = object()


def answered(
    tx: Any, name: str, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker],
) -> VariableTracker | None:
    """Return what a method that gives Python's values gives for constants, or None.

    Args:
        tx: Dynamo's translator.
        name: Of the method.
        args: What Dynamo holds for its arguments, the tensor first.
        kwargs: The same of its keyword arguments.
    """
    ask = ANSWERS.get(name)
    given = [] if ask is None else [_on_host(one) for one in (*args, *kwargs.values())]
    if ask is None or any(one is _UNKNOWN for one in given):
        return None
    try:
        with no_dispatch():
            answer = ask(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
    except Exception:  # Dynamo says what is wrong with the call
        return None
    return VariableTracker.build(tx, answer)


def _on_host(argument: VariableTracker) -> Any:
    """Return the values of a constant, or Python's value of what is no tensor."""
    if isinstance(argument, TensorVariable):
        values = known_values(argument.as_proxy().node.meta.get("example_value"))
        return _UNKNOWN if values is None else values
    return argument.as_python_constant() if argument.is_python_constant() else _UNKNOWN


def _equal(handled: Any, tx: Any, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker | None:
    return answered(tx, handled.value.__name__, args, kwargs)


def _one_hot_of_size(tensor: Tensor, num_classes: int) -> Tensor:
    """`F.one_hot` of as many classes as a size says: torch's operator takes a plain number, and fixes the size."""
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


def _one_hot(handled: Any, tx: Any, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker | None:
    """Count the classes of a constant where nobody says how many there are; compare where they are a size."""
    given = dict(zip(("tensor", "num_classes"), args, strict=False)) | kwargs
    classes = given.get("num_classes")
    if isinstance(classes, SymNodeVariable) and getattr(given.get("tensor"), "dtype", None) is torch.int64:
        compare = VariableTracker.build(tx, _one_hot_of_size)
        found: VariableTracker = tx.inline_user_function_return(compare, [given["tensor"], classes], {})
        return found
    values = _on_host(given["tensor"]) if "tensor" in given else None
    if not isinstance(values, Tensor) or not values.numel() or not (classes is None or classes.is_constant_match(-1)):
        return None
    with no_dispatch():
        count = int(values.max()) + 1
    called: VariableTracker = handled.call_function(tx, [given["tensor"], VariableTracker.build(tx, count)], {})
    return called


FUNCTIONS: Mapping[Callable[..., Any], Callable[..., VariableTracker | None]] = {
    torch.equal: _equal, torch.allclose: _equal, torch.is_nonzero: _equal, F.one_hot: _one_hot,
}
"""Functions that ask for values, and what looks whether they are known."""


def _look_at_calls() -> None:
    handlers = TorchInGraphFunctionVariable._get_handlers()
    for function, ours in FUNCTIONS.items():
        handlers[function] = _first(ours, handlers.get(function))


def _first(ours: Callable[..., Any], plain: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what asks one handler of Dynamo's, and where that gives nothing, another one."""
    def handle(*args: Any, **kwargs: Any) -> Any:
        known = ours(*args, **kwargs)
        return plain(*args, **kwargs) if known is None and plain is not None else known

    return handle


def _look_at_branches() -> None:
    """Let Dynamo take the branch that a constant decides."""
    tables = {id(kind.dispatch_table): kind.dispatch_table for kind in _kinds(InstructionTranslatorBase)}
    for table in tables.values():
        for name, number in dis.opmap.items():
            if re.fullmatch("(POP_)?JUMP_.*IF_(TRUE|FALSE)(_OR_POP)?", name):
                table[number] = _with_known_condition(name, table[number])


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield a class and what inherits from it."""
    yield kind
    for heir in kind.__subclasses__():
        yield from _kinds(heir)


def _with_known_condition(name: str, jump: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return what takes an instruction that jumps where a value is, or is not, true."""
    def jump_if(translator: Any, instruction: Any) -> None:
        condition = translator.stack[-1]  # a constant is never one that Dynamo has yet to look at
        number = answered(translator, "item", [condition], {}) if isinstance(condition, TensorVariable) else None
        if number is None:
            jump(translator, instruction)
            return
        jumps = bool(number.as_python_constant()) == ("IF_TRUE" in name)
        if not (jumps and name.endswith("_OR_POP")):
            translator.pop()
        if jumps:
            translator.jump(instruction)

    return jump_if
