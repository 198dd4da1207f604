"""Rows that products have made, before a softmax: how they lie, and what it takes to bring them together."""

from __future__ import annotations

from math import prod

import pytest
import torch

from torchipu.device.codelets import STRIDED_COPY
from torchipu.device.cost.exchange import exchange_cycles
from torchipu.device.product_sets import LEFT, MADE_OPERANDS, RIGHT
from torchipu.device.whole_rows import SCATTERED_ROWS, brought_together
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.options import Options
from torchipu.step import InferenceStep, TrainStep
from torchipu.target import lookup_target

HEADS, LENGTH, WIDTH = 2, 64, 32


class Attention(torch.nn.Module):
    """Attention op by op, whose queries are trained."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.queries = torch.nn.Parameter(torch.randn(HEADS, LENGTH, WIDTH))
        self.dim = dim

    def forward(self, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return `[H, L, D]`, or its sum in training."""
        scores = self.queries @ keys.transpose(-1, -2) * WIDTH**-0.5 + mask
        found = torch.nn.functional.dropout(scores.softmax(self.dim), 0.1, self.training) @ keys
        return found.sum() if self.training else found


def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(HEADS, LENGTH, WIDTH), torch.zeros(LENGTH)


def ops_of(model: torch.nn.Module, *values: torch.Tensor) -> list[Op]:
    options = Options(target="bow")
    if model.training:
        step: TrainStep | InferenceStep = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), options)
    else:
        step = InferenceStep(model, options)
    step.compile(*values)
    return list(step.compiled.graph.ops)


def marked(ops: list[Op]) -> dict[str, bool]:
    return {op.kind: SCATTERED_ROWS in op.attrs for op in ops if op.kind.startswith("softmax")}


def test_a_softmax_of_a_product_brings_rows_together_and_so_does_its_gradient() -> None:
    assert marked(ops_of(Attention().eval(), *inputs())) == {"softmax": True}
    assert marked(ops_of(Attention().train(), *inputs())) == {"softmax": True, "softmax_grad": True}


def test_rows_of_an_input_or_along_another_dimension_are_not_brought_together() -> None:
    assert marked(ops_of(torch.nn.Softmax(-1).eval(), torch.randn(LENGTH, WIDTH))) == {"softmax": False}
    assert marked(ops_of(Attention(1).eval(), *inputs())) == {"softmax": False}


def test_a_product_takes_rows_of_a_softmax_as_they_lie() -> None:
    products = [op for op in ops_of(Attention().eval(), *inputs()) if op.kind == "bmm"]
    assert LEFT not in str(products[-1].attrs.get(MADE_OPERANDS, ""))


class Turned(Attention):
    """The same, with each key's column of shares."""

    def forward(self, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return `[H, L, D]`."""
        return (self.queries @ keys.transpose(-1, -2) + mask).softmax(-1).transpose(-1, -2) @ keys


def test_a_product_that_adds_up_along_columns_of_a_softmax_has_them_rearranged() -> None:
    products = [op for op in ops_of(Turned().eval(), *inputs()) if op.kind == "bmm"]
    assert LEFT in str(products[-1].attrs[MADE_OPERANDS])
    assert RIGHT not in str(products[-1].attrs[MADE_OPERANDS])


def test_the_exchange_is_that_of_a_vendors_profile() -> None:
    target = lookup_target("c600")
    made = brought_together(target, (16, 729, 729), DType.HALF)
    cycles = exchange_cycles(target, made.gathered_bytes, made.fragments)
    assert cycles == pytest.approx(4477, rel=0.1)


@pytest.mark.parametrize(("dtype", "per_byte"), [(DType.HALF, 5.15), (DType.FLOAT, 3.125)])
def test_elements_are_copied_one_by_one(dtype: DType, per_byte: float) -> None:
    target, shape = lookup_target("bow"), (16, 256, 256)
    made = brought_together(target, shape, dtype)
    assert made.codelet is STRIDED_COPY
    expected = 587 + per_byte * prod(shape) * dtype.device_bytes / target.num_tiles
    assert STRIDED_COPY.cycles(target, made.work(1)) == pytest.approx(expected, rel=0.01)
