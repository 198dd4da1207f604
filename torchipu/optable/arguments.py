"""Conditions that eager PyTorch holds arguments to, and that the graphs of torch let through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import Constraint


def has_dim(name: str = "dim") -> Constraint:
    """Return the condition that a dimension is one of the operand ``self``; of a 0-d one, 0 and -1 are."""
    def holds(op: Op) -> bool:
        count = max(1, len(op.needed("self").shape))
        return -count <= op.integer(name, 0) < count

    return Constraint(holds, f"{name!r} is out of the range of dimensions of its operand",
                      "count dimensions from 0, or from -1 backwards",
                      lambda op: f"{op.integer(name, 0)} of {max(1, len(op.needed('self').shape))}")


def of_one_type(operands: Callable[[Op], tuple[Tensor, ...]]) -> Constraint:
    """Return the condition that operands have one element type, which eager mode does not bring about by itself."""
    return Constraint(
        lambda op: len({tensor.dtype for tensor in operands(op)}) <= 1, "operands must be of one element type",
        "convert them with .to(), .half() or .float(), or convert the model",
        lambda op: " and ".join(tensor.dtype.text for tensor in operands(op)),
    )


def in_range(name: str, least: float, most: float, default: float) -> Constraint:
    """Return the condition that a number lies between two others, the ends included."""
    return Constraint(
        lambda op: least <= op.number(name, default) <= most, f"{name!r} must lie between {least:g} and {most:g}",
        "pass a number of that range", lambda op: f"{op.number(name, default):g}",
    )


def _has_shape_along_dim(op: Op) -> bool:
    into, source = op.needed("self").shape, op.needed("source").shape
    dim = op.integer("dim") % max(1, len(into))
    return len(into) == len(source) and into[:dim] + into[dim + 1:] == source[:dim] + source[dim + 1:]


ROWS_LIKE_SELF = Constraint(
    _has_shape_along_dim, "'source' must have the shape of 'self' but for the dimension that is indexed",
    "expand 'source' to that shape first: it is not broadcast",
)


def shaped_as(name: str, shape: Callable[[Op], Sequence[int]]) -> Constraint:
    """Return the condition that an operand has the shape of what it replaces; the kernels would read beyond it."""
    return Constraint(lambda op: op.needed(name).shape == tuple(shape(op)),
                      f"{name!r} must have the shape of what it replaces", "expand it first: it is not broadcast",
                      lambda op: f"{list(op.needed(name).shape)} for {list(shape(op))}")


def at_least(least: int, *names: str) -> Constraint:
    """Return the condition that integers, where they are given, are no less than another."""
    return Constraint(
        lambda op: all(value >= least for name in names for value in op.integers(name, ())),
        f"{' and '.join(map(repr, names))} must be at least {least}", "pass numbers of that range",
    )


AS_MANY_AS_INDICES = Constraint(
    lambda op: op.needed("source").num_elements == op.needed("index").num_elements,
    "'source' and 'index' must have equally many elements", "expand one of them first: they are not broadcast",
)
BOOLEAN_MASK = Constraint(
    lambda op: op.needed("mask").dtype is DType.BOOL, "'mask' must be of bools", "convert it with .bool()",
)
ONE_ROW_OF_INDICES = Constraint(
    lambda op: len(op.needed("index").shape) <= 1, "'index' must have one dimension",
    "flatten it, or use torch.gather or x[index] instead",
)
ONE_ROW_OF_BOUNDARIES = Constraint(
    lambda op: len(op.needed("boundaries").shape) == 1, "'boundaries' must have one dimension",
    "use torch.searchsorted, which takes a row of boundaries for each row of values",
)
FLOATING_WEIGHTS = Constraint(
    lambda op: op.needed("self").dtype.is_floating, "weights must be of a floating type", "convert them with .float()",
)
DRAWS_ENOUGH = Constraint(
    lambda op: op.integer("num_samples") > 0, "'num_samples' must be positive", "draw at least one",
)
DRAWS_NO_MORE_THAN_THERE_ARE = Constraint(
    lambda op: op.flag("replacement") or op.integer("num_samples") <= op.needed("self").shape[-1],
    "'num_samples' must be no more than there are weights, as each is drawn once", "pass replacement=True",
)
RISING = Constraint(
    lambda op: op.number("from", 0.0) <= op.number("to", 1.0), "'from' must be no more than 'to'", "exchange the two",
)
