"""Which variable of a compute set its result may lie on: an operand of which each vertex reads what it overwrites."""

from __future__ import annotations

from collections.abc import Mapping

from torchipu.device.lower.values import KEEPS_ORDER
from torchipu.ir.graph import Op, Tensor, operand_labels
from torchipu.ir.program import Variable, VertexGroup
from torchipu.optable.in_place import overwritable


def operands_below(group: VertexGroup, views: Mapping[Tensor, Op]) -> tuple[Variable, ...]:
    """Return the variables that the result of an op may lie on, element on element, if nothing reads them afterwards.

    Args:
        group: Of the op.
        views: Op that makes each value which has no variable of its own.
    """
    allowed = () if group.over_shares else overwritable(group.op)
    if not allowed:
        return ()
    result, variables = group.fields["out"], dict(zip(group.op.inputs, operand_labels(group.op), strict=False))
    if not _is_passing(result):
        return ()
    found = []
    for tensor in allowed:
        variable = group.fields[variables[tensor]]
        if _is_passing(variable) and _lie_alike(variable, result) and _is_in_order(tensor, views):
            found.append(variable)
    return tuple(dict.fromkeys(found))


def _is_passing(variable: Variable) -> bool:
    return variable.depth == 1 and not variable.off_chip and not variable.role.is_state


def _lie_alike(one: Variable, other: Variable) -> bool:
    """Whether elements of the same number lie on the same tile, as far from where each variable begins."""
    if one.dtype is not other.dtype or one.num_elements != other.num_elements:
        return False
    return one.mapping is other.mapping or one.mapping.runs == other.mapping.runs


def _is_in_order(tensor: Tensor, views: Mapping[Tensor, Op]) -> bool:
    """Whether the elements of a value lie in the order of those of its variable."""
    while tensor in views:
        if views[tensor].target not in KEEPS_ORDER:
            return False
        tensor = views[tensor].inputs[0]
    return True
