"""Results of a program that a generic step reads or writes."""

import pytest
import torch
import torch.nn.functional as F

from tests.host.planned import planned_kernels
from torchipu.host.executor import GraphExecutor
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType


def test_output_that_a_generic_step_reads_reaches_both_readers():
    x, ids = Tensor("x", (16, 8), DType.FLOAT), Tensor("ids", (40,), DType.LONG)
    picked, last = Tensor("picked", (40, 8), DType.FLOAT), Tensor("last", (40, 8), DType.FLOAT)
    ops = (
        Op("index_select", (x, ids), (picked,), {"dim": 0}, "aten.index_select.default", ("self", "index")),
        Op("generic", (picked,), (last,), {}, "aten.special_erfcx.default", ("self",)),
    )
    table, index = torch.randn(16, 8), torch.randint(0, 16, (40,))
    found = GraphExecutor(Graph("g", (x, ids), (last, picked), ops))(table, index)
    assert torch.equal(found[1], table[index])
    torch.testing.assert_close(found[0], torch.special.erfcx(table[index]))


def sampled(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return F.grid_sample(x, grid, align_corners=False)


def test_torch_reads_and_writes_where_the_caller_has_what_it_lies_in(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    compiled = torch.compile(sampled, backend="ipu", dynamic=False)
    torch.manual_seed(0)
    inputs = [(torch.randn(2, 3, 4, 9, 9), torch.rand(2, 2, 5, 5, 3) * 2 - 1) for _ in range(3)]
    inputs.append((torch.randn(5, 3, 4, 9, 9)[2:4], torch.rand(3, 2, 5, 5, 3)[1:]))  # behind others in their memory
    found = [compiled(*each) for each in inputs]
    for mine, each in zip(found, inputs, strict=True):
        wanted = sampled(*(value.double() for value in each))
        torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5)
    assert kernels == []  # nothing is copied to the arena, nor back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_lies_otherwise_or_goes_on_to_kernels_is_as_eager_has_it(dtype: torch.dtype) -> None:
    def model(x: torch.Tensor, grid: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = sampled(x * 2, grid)
        second = sampled(first, grid)
        return second, first, torch.cat([sampled(x, grid), first], 1), second.abs()

    torch._dynamo.reset()
    compiled = torch.compile(model, backend="ipu", dynamic=False)
    torch.manual_seed(1)
    x = torch.randn(2, 4, 3, 9, 9).to(dtype).to(memory_format=torch.channels_last_3d).requires_grad_()
    grid = (torch.rand(2, 3, 2, 5, 5) * 2 - 1).to(dtype).permute(0, 2, 3, 4, 1).requires_grad_()
    exact = [value.detach().double().requires_grad_() for value in (x, grid)]
    found, wanted = compiled(x, grid), model(*exact)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for mine, its in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), its, **near)
    gradients = torch.autograd.grad(found[2].sum() + found[3].sum(), [x, grid])
    exact_gradients = torch.autograd.grad(wanted[2].sum() + wanted[3].sum(), exact)
    torch.testing.assert_close(gradients[0].double(), exact_gradients[0], **near)
    if dtype is torch.float32:  # rounded to halves, places are between other elements
        torch.testing.assert_close(gradients[1].double(), exact_gradients[1], **near)
