"""In which orders of their dimensions values lie: row-major, or as the caller, or an operand, has them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torchipu.host.uses import Uses
from torchipu.ir.graph import Op, Tensor
from torchipu.optable.host_tensor import HostTensor, contiguous_strides, order_of

Order = tuple[int, ...]
"""Dimensions, the one of longest strides first."""


class Orders:
    """The orders that values of a plan may lie in.

    Args:
        uses: Who reads what.
        expected: Strides in which the caller expects outputs that are not row-major, without gaps or overlaps.
        saved: Outputs that may lie in any order.
        are_kept: Whether values lie in other orders than row-major where inputs or outputs do. Sums over several
            elements may then be made in another order: programs whose values may not depend on how they are cut into
            several have no such inputs.
    """

    def __init__(
        self, uses: Uses, expected: Mapping[Tensor, tuple[int, ...]], saved: Collection[Tensor], *, are_kept: bool,
    ) -> None:
        self.uses, self.expected, self.saved, self.are_kept = uses, expected, saved, are_kept

    def may_lie_anyhow(self, tensor: Tensor) -> bool:
        """Whether it is nobody's concern in which order a value lies, and orders are kept."""
        return self.are_kept and (tensor not in self.uses.kept or tensor in self.saved)

    def strides_in(self, tensor: Tensor, order: Sequence[int]) -> tuple[int, ...]:
        """Return the strides of a value that lies in an order: those expected of it, or such as leave no gaps."""
        if tensor in self.expected:
            return self.expected[tensor]
        strides = contiguous_strides([tensor.shape[dim] for dim in order])
        return tuple(strides[order.index(dim)] for dim in range(len(tensor.shape)))

    def of_expected(self, tensor: Tensor) -> Order | None:
        """Return the order in which the caller expects a result; None where nobody does, which is row-major."""
        return order_of(tensor.shape, self.expected[tensor]) if tensor in self.expected else None

    def like(self, held: HostTensor, tensor: Tensor) -> Order | None:
        """Return the order of a result that is made as an operand lies; None where it has to be row-major, or is."""
        expected = self.of_expected(tensor)
        if expected is None and not self.may_lie_anyhow(tensor):
            return None
        order = held.order if expected is None else expected
        if len(held.shape) != len(order) or not held.permuted(order).is_contiguous:
            return None
        return None if expected is None and held.is_contiguous else order

    def of_chain(
        self, chain: Sequence[Op], stored: Collection[Tensor], held: Mapping[Tensor, HostTensor]
    ) -> Order | None:
        """Return the order in which a chain goes through elements; None for row-major.

        It is that in which the caller expects what is stored, or else that in which all operands lie. It may draw no
        random bits to round halves by: these are drawn by place.

        Args:
            chain: Its ops.
            stored: Results that others read.
            held: Where operands lie.
        """
        others = [result for result in stored if result not in self.expected]
        if not all(map(self.may_lie_anyhow, others)):
            return None
        expected = map(self.of_expected, stored)
        orders = {order for order in expected if order is not None} or self._of_operands(chain, held)
        return orders.pop() if len(orders) == 1 else None

    def _of_operands(self, chain: Sequence[Op], held: Mapping[Tensor, HostTensor]) -> set[Order]:
        """Return the orders in which operands lie that are as large as the results of a chain."""
        shape = chain[0].outputs[0].shape
        found = [held.get(operand) for op in chain for operand in op.inputs if operand.shape == shape]
        lying = [each for each in found if each is not None]
        if any(each.is_contiguous or not each.is_dense for each in lying):
            return set()
        return {each.order for each in lying}


def with_channels_last(strides: Mapping[Tensor, tuple[int, ...]]) -> set[Tensor]:
    """Return which of some images lie, by their strides, with their channels last."""
    return {
        tensor for tensor, given in strides.items()
        if len(tensor.shape) == 4 and HostTensor(0, 0, tensor.shape, given, tensor.dtype).has_channels_last
    }
