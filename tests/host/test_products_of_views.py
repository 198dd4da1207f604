"""Products of single lines read windows and repeated matrices without a copy: values, gradients and steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import torchipu
from tests.host.planned import planned_kernels
from torchipu.host.products_of_views import with_products_of_views
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Role

Function = Callable[..., torch.Tensor]


def neighbours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Attend to the nine neighbours of each position."""
    keys, values = (F.pad(each, (0, 0, 4, 4)).unfold(1, 9, 1) for each in (y, y * x))
    return torch.einsum("btw,btdw->btd", torch.einsum("btd,btdw->btw", x, keys).softmax(-1), values)


PRODUCTS: dict[str, Function] = {
    "windows": neighbours,
    "windows with steps": lambda x, y: (x[:, :8, None, :] @ y.unfold(1, 6, 2)[:, :8]).squeeze(2),
    "repeated matrices": lambda x, y: (y[:, None].expand(-1, 5, -1, -1) @ x[:, :5, :, None]).squeeze(-1),
    "repeated rows": lambda x, y: x[:, None, :1].expand(-1, 9, -1, -1) @ y[:, :9, :, None].expand(-1, -1, -1, 7),
    "a column times a row": lambda x, y: x[..., None] @ y[:, :, None, :7],
    "transposed after the reshape": lambda x, y: torch.bmm(
        x[:, :18].reshape(54, 1, 13), y.unfold(1, 3, 1).mT.reshape(54, 3, 13).mT,
    ),
    "transposed twice after the reshape": lambda x, y: torch.bmm(
        x[:, :18].reshape(54, 1, 13), y.unfold(1, 3, 1).reshape(54, 13, 3).mT.mT,
    ),
    "permuted after the reshape": lambda x, y: torch.bmm(
        x[:, :18].reshape(54, 1, 13), y.unfold(1, 3, 1).mT.reshape(54, 3, 13).permute(0, 2, 1),
    ),
    "exchanged with the batch after the reshape": lambda x, y: torch.bmm(
        x[:, :3, :9].reshape(9, 1, 9), y.unfold(1, 9, 1)[:, :3, :9].reshape(9, 9, 9).permute(1, 0, 2),
    ),
    "reshaped from other dimensions": lambda x, y: torch.bmm(
        x[:, None, :1].expand(-1, 5, -1, -1).reshape(15, 1, 13), y.reshape(5, 3, 13, 4).reshape(15, 13, 4),
    ),
    "repeated in other dimensions": lambda x, y: torch.bmm(
        x[:, None, :1].expand(-1, 5, -1, -1).reshape(15, 1, 13),
        y[:, :5].transpose(0, 1)[..., None].expand(-1, -1, -1, 7).reshape(15, 13, 7),
    ),
    "reshaped by halves of the batch": lambda x, y: torch.bmm(
        x[:, None].expand(-1, 5, -1, -1).reshape(15, 20, 13)[:, :1],
        y[:, None].expand(-1, 5, -1, -1).reshape(15, 20, 13).mT,
    ),
}


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels of all plans that are made."""
    return planned_kernels(monkeypatch)


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 20, 13), torch.randn(3, 20, 13)


@pytest.mark.parametrize("name", PRODUCTS)
def test_values_and_gradients_are_those_of_float64(name: str, kernels: list[str]) -> None:
    function, found = PRODUCTS[name], []
    for threads in (1, 2):
        torch._dynamo.reset()
        given = [each.requires_grad_() for each in drawn()]
        compiled = torch.compile(function, backend="ipu", options=torchipu.Options(host_threads=threads))
        result = compiled(*given)
        result.square().sum().backward()
        found.append([result.detach(), *(each.grad for each in given)])
    assert "line_products" in kernels
    exact = [each.double().requires_grad_() for each in drawn()]
    expected = function(*exact)
    expected.square().sum().backward()
    for mine, other, right in zip(*found, [expected.detach(), *(each.grad for each in exact)], strict=True):
        assert mine is not None
        assert right is not None
        assert (mine.double() - right).abs().max() <= 1e-5 * right.abs().max()
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", [
    "windows with steps", "repeated matrices", "a column times a row", "reshaped from other dimensions",
])
def test_no_operand_is_copied(name: str, kernels: list[str]) -> None:
    with torch.no_grad():
        torch.compile(PRODUCTS[name], backend="ipu")(*drawn())
    assert kernels == ["line_products"]


@pytest.mark.parametrize("name", [
    "transposed after the reshape", "transposed twice after the reshape", "permuted after the reshape",
])
def test_matrices_that_were_turned_after_a_reshape_are_not_copied(name: str, kernels: list[str]) -> None:
    with torch.no_grad():
        torch.compile(PRODUCTS[name], backend="ipu")(*drawn())
    assert kernels == ["copy", "line_products"]  # of rows of another tensor, to be one batch


@pytest.mark.parametrize("turns", range(4))
def test_matrices_that_were_turned_twice_are_as_before(turns: int) -> None:
    """Canonical graphs have no such pair."""
    left, windows = (Tensor(name, shape, DType.FLOAT, Role.INPUT) for name, shape in (
        ("left", (54, 1, 13)), ("windows", (3, 18, 13, 13)),
    ))
    held = Tensor("held", (54, 13, 13), DType.FLOAT)
    ops = [Op("view", (windows,), (held,), {"size": [54, 13, 13]}, "aten.view.default", ("self",))]
    for number in range(turns):
        turned = Tensor(f"turned_{number}", (54, 13, 13), DType.FLOAT)
        ops.append(Op("transpose", (held,), (turned,), {"dim0": 1, "dim1": -1}, "aten.transpose.int", ("self",)))
        held = turned
    result = Tensor("result", (54, 1, 13), DType.FLOAT)
    ops.append(Op("bmm", (left, held), (result,), {}, "aten.bmm.default", ("self", "mat2")))
    *before, product = with_products_of_views(Graph("g", (left, windows), (result,), tuple(ops))).ops
    assert [(op.target, op.inputs) for op in before] == [("aten.transpose.int", (windows,))] * (turns % 2)
    assert product.inputs == (left, before[0].outputs[0] if before else windows)


def test_the_forward_keeps_no_windows_for_the_backward() -> None:
    x, y = (each.requires_grad_() for each in drawn())
    kept = 0

    def packed(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        result = torch.compile(lambda x, y: x[:, :12, None, :] @ y.unfold(1, 9, 1), backend="ipu")(x, y)
    assert 0 < kept <= x.numel() + y.numel()
    result.sum().backward()
