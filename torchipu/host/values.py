"""Where the values of tensors lie while a plan is made, in which types and orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torchipu.host.emit.copy import emit_copy
from torchipu.host.kept_floats import KeptFloats
from torchipu.ir.graph import Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner


class Values:
    """Storage by tensor.

    Attributes:
        by_tensor: Of each tensor whose steps have been emitted, and of inputs.
        states: Of those among the inputs that outlast a call.

    Args:
        floats: Which half results have floats as well.
    """

    def __init__(self, floats: KeptFloats) -> None:
        self.floats = floats
        self.by_tensor: dict[Tensor, HostTensor] = {}
        self.states: dict[Tensor, HostTensor] = {}
        self._converted: dict[tuple[HostTensor, DType], HostTensor] = {}

    def given(self, plan: HostPlanner, tensor: Tensor, dtype: DType | None, *, contiguous: bool) -> HostTensor:
        """Return where a value lies, cast or copied to row-major order where asked for.

        Args:
            plan: Receives the steps.
            tensor: Whose value.
            dtype: Type asked for; None for its own.
            contiguous: Whether to have it row-major; a cast alone keeps the order in which the elements lie.
        """
        held = self.by_tensor[tensor]
        wanted = dtype or held.dtype
        if wanted is DType.FLOAT:
            held = self.floats.of(held) or held
        if held.dtype is wanted and (held.is_contiguous or not contiguous):
            return held
        return self._copy(plan, held, wanted) if contiguous else self._cast_as_it_lies(plan, held, wanted)

    def _copy(self, plan: HostPlanner, held: HostTensor, dtype: DType) -> HostTensor:
        key = (held, dtype)
        if key not in self._converted:
            fresh = plan.scratch(held.shape, dtype)
            emit_copy(plan, fresh, held)
            self._converted[key] = fresh
        return self._converted[key]

    def _cast_as_it_lies(self, plan: HostPlanner, held: HostTensor, dtype: DType) -> HostTensor:
        """Return storage of another type in which elements lie in the same order: a transposed view stays one.

        All views of the same elements share it, so that a weight is converted once for forward and backward.
        """
        order = sorted(range(len(held.shape)), key=lambda dim: (-abs(held.strides[dim]), dim))
        lying = HostTensor(
            held.buffer, held.offset, tuple(held.shape[dim] for dim in order),
            tuple(held.strides[dim] for dim in order), held.dtype,
        )
        fresh = self._copy(plan, lying, dtype)
        strides = [0] * len(order)
        for place, dim in enumerate(order):
            strides[dim] = fresh.strides[place]
        return HostTensor(fresh.buffer, fresh.offset, held.shape, tuple(strides), dtype)

    @contextmanager
    def of_body(self, formals: Sequence[Tensor], operands: Sequence[HostTensor]) -> Iterator[None]:
        """Give the inputs of a body their storage; a copy that its steps make is there only where these have run."""
        self.by_tensor.update(zip(formals, operands, strict=True))
        converted = self._converted
        self._converted = dict(converted)
        yield
        self._converted = converted
